"""Views as programs read them: rows, one row, open windows, the past, changes; the same over a folder and over HTTP.

What is wanted comes in as an `Asked`, rows go out as a `Found`. `ViewSource` says what every place promises; enter at
`View`.
"""

from headwater.client.views.asked import Asked, receipts_of
from headwater.client.views.changes import changes_topic
from headwater.client.views.folder import FolderViews
from headwater.client.views.found import Found, ViewInfo
from headwater.client.views.lag import PipelineLag, pipeline_lags
from headwater.client.views.source import ViewSource
from headwater.client.views.view import View

__all__ = [
    "Asked",
    "FolderViews",
    "Found",
    "PipelineLag",
    "View",
    "ViewInfo",
    "ViewSource",
    "changes_topic",
    "pipeline_lags",
    "receipts_of",
]

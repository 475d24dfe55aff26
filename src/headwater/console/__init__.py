"""The page in the browser: built files, ready to be served; nothing here is written by hand.

The source is in the folder `console/` of the repository; `make console` builds it into `assets/`, and the built files
are kept in the repository, so that nobody needs Node to use or install Headwater. A server enters at `ASSETS`.
"""

from pathlib import Path
from typing import Final

__all__ = ["ASSETS"]

ASSETS: Final = Path(__file__).with_name("assets")
"""The folder of the built page: `index.html`, what it loads, `manifest.json` and the licences of what is in it."""

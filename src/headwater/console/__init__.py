"""The built files of the web console.

The source is in the folder `console/` of the repository; `make console` builds it into `assets/`. The built files are
in the repository, so that Headwater can be installed and used without Node.js. Enter at `ASSETS`.
"""

from pathlib import Path
from typing import Final

__all__ = ["ASSETS"]

ASSETS: Final = Path(__file__).with_name("assets")
"""The folder of the built page: `index.html`, the files it loads, `manifest.json`, and the licences of its packages."""

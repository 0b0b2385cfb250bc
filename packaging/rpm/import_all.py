"""Import every module of a package, compiled ones too: ``import_all.py PACKAGE``. See macros.fallback.

Only a module that needs what one of the package's extras names may be without it.
"""

import importlib
import importlib.metadata
import pkgutil
import re
import sys

name = sys.argv[1]
optional = {re.split(r"[^A-Za-z0-9_]", each)[0] for each in importlib.metadata.requires(name) or [] if "extra ==" in each}
package = importlib.import_module(name)
for module in pkgutil.walk_packages(package.__path__, f"{name}.", onerror=lambda _: None):
    if module.name.endswith(".__main__"):
        continue
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in optional:
            raise
        print(f"{module.name}: not imported, as {missing} is not here")

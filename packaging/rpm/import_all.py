"""Import every module of a distribution, compiled ones too: ``import_all.py DISTRIBUTION``. See macros.fallback.

Only a module that needs what one of the distribution's extras names may be without it.
"""

import importlib
import importlib.metadata
import pkgutil
import re
import sys


def import_one(module: str) -> bool:
    """Import *module*, and return whether what it needs is here."""
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in optional:
            raise
        print(f"{module}: not imported, as {missing} is not here")
        return False
    return True


name = sys.argv[1]
optional = {re.split(r"[^A-Za-z0-9_]", each)[0] for each in importlib.metadata.requires(name) or [] if "extra ==" in each}
packages = sorted(package for package, owners in importlib.metadata.packages_distributions().items() if name in owners)
if not packages:
    sys.exit(f"{name} has no packages")
for package in packages:
    if import_one(package):
        for found in pkgutil.walk_packages(sys.modules[package].__path__, f"{package}.", onerror=lambda _: None):
            if not found.name.endswith(".__main__"):
                import_one(found.name)

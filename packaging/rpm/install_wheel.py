"""Install a wheel below a folder as Fedora lays Python packages out: ``install_wheel.py WHEEL FOLDER``.

Debian's Python would put it where Debian's packages have it. For a Debian that builds the spec; see macros.fallback.
"""

import sys
import sysconfig

from installer import install
from installer.destinations import SchemeDictionaryDestination
from installer.sources import WheelFile

_, wheel, folder = sys.argv
paths = sysconfig.get_paths("posix_prefix")
destination = SchemeDictionaryDestination(paths, interpreter="/usr/bin/python3", script_kind="posix", destdir=folder)
with WheelFile.open(wheel) as source:
    install(source, destination, additional_metadata={"INSTALLER": b"rpm\n"})

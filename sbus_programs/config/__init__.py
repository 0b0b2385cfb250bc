"""The configuration: its files, their keys, and the defaults. Spec: sbusd.toml(5).

``settings`` has the values and their defaults, and imports nothing slow: a bus without a configuration file starts without pydantic.
``documents`` reads and checks the files, and is imported only if there is one.
"""

from sbus_programs.config.configuration import Configuration, Fault, describe, require_open
from sbus_programs.config.files import ConfigError, configuration_files, default_main_file
from sbus_programs.config.loading import check_daemon_settings, load_configuration, load_daemon_settings
from sbus_programs.config.rules import PolicyRule, RightsSettings, Subjects
from sbus_programs.config.settings import (
    DaemonSettings,
    LimitSettings,
    LogSettings,
    QuotaOverride,
    Quotas,
    QuotaSettings,
    RateSettings,
)
from sbus_programs.config.users import UnknownUserError, find_uid

__all__ = [
    "ConfigError",
    "Configuration",
    "DaemonSettings",
    "Fault",
    "LimitSettings",
    "LogSettings",
    "PolicyRule",
    "QuotaOverride",
    "QuotaSettings",
    "Quotas",
    "RateSettings",
    "RightsSettings",
    "Subjects",
    "UnknownUserError",
    "check_daemon_settings",
    "configuration_files",
    "default_main_file",
    "describe",
    "find_uid",
    "load_configuration",
    "load_daemon_settings",
    "require_open",
]

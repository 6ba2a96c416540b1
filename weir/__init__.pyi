from .config import Settings, SettingsError, load_settings

__all__ = [
    "Settings",
    "SettingsError",
    "load_settings",
]

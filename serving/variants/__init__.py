"""Champion and challenger in one server: `lines` follows both variants' bundles, `split` routes each call to one."""

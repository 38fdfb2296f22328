"""Linear heads on fixed features, from which rows can be deleted exactly. Public as :mod:`purge.heads`."""

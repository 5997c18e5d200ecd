"""`sluice`: previews and translations, without a cluster."""

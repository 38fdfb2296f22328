"""A ledger as a page and a small REST API: what ``purge request`` does, in a browser (extra ``serve``)."""

"""Which batch comes next, exactly: the cursor and how it walks each kind of loader."""

"""One file per revision; the file's number is the revision's."""

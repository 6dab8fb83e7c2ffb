"""The course as a static site that opens from disk: `make site`."""

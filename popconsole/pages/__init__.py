"""One module for each page; `popconsole.app` has their addresses."""

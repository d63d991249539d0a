"""The documentation site: pages that are generated from the code, and links to files outside of docs/."""

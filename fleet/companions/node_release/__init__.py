"""The release of nodes by a running launch; imports control and storage."""

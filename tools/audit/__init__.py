"""`make audit`: known vulnerabilities of the locked packages, and the licences of what the images ship."""

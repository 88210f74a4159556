"""A kubelet whose pods are processes of this machine: it runs as a process of its own."""

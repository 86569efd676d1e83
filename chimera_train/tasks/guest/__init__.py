"""What runs inside a sandbox: the standard library only, and started by ``sandbox.py``.

A sandbox is told by a JSON object which limits to set, which user to become, and what to do
(``mode``):

- ``programs``: run ``code`` as a script once for each of ``inputs``, in a forked process of its
  own, and send what each printed. The process that forks never runs a line of the code.
- ``serve``: run ``code`` as a module, then answer what is asked about its names over the socket
  ``peer``: calls, attributes, items.
- ``check``: run trusted checks against a module that another sandbox serves over ``peer``. Values
  come back as plain builtins, so that no object of the module can pretend to equal another, and
  the module sees its arguments only: neither the checks nor what they expect.

Nothing is imported where this package is read from files: the sandbox sees none of them.
"""

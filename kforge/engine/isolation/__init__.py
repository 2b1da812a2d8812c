"""Kernels in a process of their own, locked down as the harness's runner locks down a candidate (``--isolate``).

A kernel is admitted as pure computation, but a return address bent into the middle of an instruction could still do
anything that its process may do. So that process may do nothing: no system call but to sleep, wake and end, no file, no
privileges.

- Memory is what both sides share: arenas in memory files. The engine writes and reads them as ever; the executor maps
  weights, step inputs, axes and tables read-only, and activations, results and the KV cache writable, at addresses of
  its own.
- A *plan* (``plan``) says everything once: blocks, kernel images, and programs as lists of launches whose tensors, axes
  and scalars are places in blocks. The executor (``executor.cc``) builds it all, installs its filter, and then only
  replays: by the very ``Program`` and ``Team`` that run in the engine's own process otherwise, hence the same bits.
- A command is a number in a shared page (``page``, ``handover.cc``): the engine's thread posts it, wakes the executor's
  first thread and sleeps on the same core until it is done. The engine counts replays itself and believes nothing but
  the tensors.
- The executor keeps no state, so what comes later (a program for a new bucket, another kernel) is a new process
  (``executor``) with the old one's arenas, some tens of milliseconds each.
- Scratch is the executor's own: kernels cannot be asked how much they want before the jail is shut, so there is as much
  as the harness allows, and what is not touched costs nothing.
- A kernel that faults, makes a system call or never comes back ends its process; a warden tells the engine, which
  raises one sentence that names the kernel. Token ids are checked before they are used; other outputs are numbers.
"""

from kforge.engine.isolation.executor import IsolatedExecutor

__all__ = ["IsolatedExecutor"]

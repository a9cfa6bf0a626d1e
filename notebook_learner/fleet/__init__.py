"""Several devices: the processes beside this one, what they are told, and the sums that they make together.

This process is rank 0 and decides everything. Each other rank is an ipyparallel engine that holds a learner
of its own, silent and without files. Where all are on this machine (`engines`) they speak over a socket that
only this user can open (`channel`), where some are the user's (`attached`, `elsewhere`), over encrypted
TCP (`link`).
Gradients go over torch.distributed, for which they meet at a `rendezvous`.
"""

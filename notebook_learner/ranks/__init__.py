"""Training on several devices, from rank 0's side: the other processes, their commands, and the sums.

This process is rank 0 and decides everything. The input is one learner's settings and its devices. The output
is the same losses, metrics and gradients as on one device. If this package started all ranks (`engines`),
they communicate over a socket that only this user can open (`channel`). Engines that the user started
(`attached_engines`) communicate over encrypted TCP (`encrypted_link`). Gradients go over torch.distributed,
for which the ranks meet at a `rendezvous`. No file here changes what a rank computes: `run` does that, in the
same way on every rank.
"""

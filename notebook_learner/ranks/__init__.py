"""Several devices, as rank 0 sees them: the other processes, what they are told, and what they sum.

This process is rank 0 and decides everything. In come one learner's settings and its devices; out go the same
losses, metrics and gradients as one device would give. Where all ranks are processes of our own (`engines`),
they speak over a socket that only this user can open (`channel`); engines of the user's (`attached_engines`)
speak over encrypted TCP (`encrypted_link`). Gradients go over torch.distributed, for which ranks meet at a
`rendezvous`. No file here touches what a rank computes: that is `run`, on every rank alike.
"""

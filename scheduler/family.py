"""Parents and children, and the copies that forks begin from.

A fork begins with its parent's conversation and has no state of its own. Where the
parent has a copy in the store, of tokens that all are the fork's too, it is lent: the
fork is parked in it, and restoring it is restoring that copy. A loan follows the
lender's copy, whenever that grows or goes, until the fork has state of its own. One
that has become longer than what both share is of no use to the fork, which then has its
prompt computed.

What is lent is known by its length alone. Should the tokens be others by now, whoever
restores them finds out by their hash.
"""

from .events import CopyLent
from .session import Session


def adopt(parent: Session, child: Session, at_s: float) -> None:
    """Enter *child* with its *parent*; lend it the parent's copy, if it is a fork."""
    parent.children[child.id] = child
    if child.forked_tokens and parent.copied_tokens:
        lend(parent, at_s)


def leave(child: Session, parent: Session | None, at_s: float) -> None:
    """Take *child*, which has been closed, from its *parent*; call its loans in."""
    if parent is not None:
        parent.children.pop(child.id, None)
    lend(child, at_s)


def lend(lender: Session, at_s: float) -> None:
    """Bring the loans of all forks of *lender* in line with the copy that it has now.

    A fork that has no copy of its own passes on to its forks what it was lent.
    """
    lenders = [lender]
    while lenders:
        lender = lenders.pop()
        source = lender.source or lender.id
        for child in lender.children.values():
            if not child.borrows:
                continue
            tokens = _lent_tokens(lender, child)
            if tokens == child.copied_tokens and child.source in (source, None):
                continue
            child.apply(
                CopyLent(at_s=at_s, session=child.id, source=source, kv_tokens=tokens)
            )
            lenders.append(child)


def _lent_tokens(lender: Session, child: Session) -> int:
    """Return how long the copy is that *child* may begin from; 0 is none."""
    tokens = 0 if lender.closed else lender.copied_tokens
    if tokens > child.forked_tokens:
        return 0
    if child.turn is not None and child.turn.admitted:
        # No more may come to its slot than was reserved for the turn.
        return tokens if tokens <= child.turn.tokens else 0
    return tokens

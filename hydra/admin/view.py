"""A node's page: its network as a picture, its links, the other nodes, its votes and events."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cached_property

from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe

from hydra.models import Event, Link, Member, Node, NodeRole, Vote
from hydra.picture import Edge, Station, draw
from hydra.protocol.electorate import Electorate, parse_electorate
from queues.admin.worker import html_table
from queues.formats.times import clock, relative

JOINED = "joined"
VOTES_SHOWN = 50
EVENTS_SHOWN = 100
EMPTY = "-"


def electorate_of(node: Node) -> Electorate | None:
    """A node's electorate; None if none is agreed."""
    try:
        return parse_electorate(node.electorate) if node.electorate else None
    except ValueError:
        return None


def vote_of(node: Node) -> str:
    """Whether a node has a vote, among how many."""
    electorate = electorate_of(node)
    if electorate is None:
        return EMPTY
    return f"{'yes' if node.voter in electorate.voters else 'no'}, {len(electorate.voters):,} have one"


def moment(at: datetime | None) -> str:
    """A moment, and how long ago it was."""
    return EMPTY if at is None else f"{clock(at)}, {relative(at, datetime.now(UTC))}"


def page_of(pk: int, text: object) -> SafeString:
    """A link to a node's page."""
    return format_html('<a href="{}">{}</a>', reverse("admin:hydra_node_change", args=[pk]), text)


class NodeView:
    """One node, read once; `may_operate`: commands are offered."""

    def __init__(self, node: Node, running: bool, may_operate: bool) -> None:
        self.node = node
        self.running = running
        self.operable = running and may_operate
        self.leads = running and node.role == NodeRole.LEADING

    @cached_property
    def links(self) -> list[Link]:
        return list(self.node.links.all())

    @cached_property
    def members(self) -> list[Member]:
        return list(self.node.members.all())

    @cached_property
    def voters_here(self) -> dict[str, Node]:
        """The nodes of this database by their lasting keys."""
        return {node.voter: node for node in Node.objects.with_running()}

    def name(self, member: Member) -> str:
        """Another node's name."""
        known = self.voters_here.get(member.voter)
        return member.tag or (known.name if known is not None else "") or f"node {member.member}"

    def name_of_id(self, id: int | None) -> object:
        """The name of the node with this id."""
        if id is None:
            return EMPTY
        if id == self.node.current_id:
            return self.node.name
        return next((self.name(member) for member in self.members if member.member == id), id)

    def picture(self) -> SafeString:
        """The node's view of the network, with links of other nodes of this database."""
        if self.node.current_id is None:
            return format_html("{}", "nothing is known yet")
        note = self.node.get_role_display() if self.running else "not running"
        stations = [Station(self.node.current_id, self.node.name, note, self.leads, True)]
        for member in self.members:
            leads = self.running and member.member == self.node.leader
            note = "leading" if leads else _hops(member)
            stations.append(Station(member.member, self.name(member), note, leads, False))
        return mark_safe(render_to_string("admin/hydra/picture.html", {"picture": draw(stations, *self._edges())}))

    def _edges(self) -> tuple[set[Edge], set[Edge]]:
        own = self.node.current_id or 0
        peers = {link.number: link.peer for link in self.links if link.state == JOINED and link.peer is not None}
        links = {frozenset((own, peer)) for peer in peers.values()}
        here = [node.pk for node in self.voters_here.values() if node.running and node.pk != self.node.pk]
        for link in Link.objects.filter(node__in=here, state=JOINED, peer__isnull=False).select_related("node"):
            if link.node.current_id is not None and link.peer is not None:
                links.add(frozenset((link.node.current_id, link.peer)))
        reached = set().union(*links)
        ways = {
            frozenset((peers[member.via], member.member))
            for member in self.members
            if member.via in peers and member.member not in reached
        }
        return links, ways

    def links_table(self) -> SafeString:
        heads = ("Link", "To or from", "Neighbour", "Id", "State", "Attributes", "Open", "")
        return html_table(heads, (self._link_row(link) for link in self.links))

    def _link_row(self, link: Link) -> tuple[object, ...]:
        where = f"to {link.target}" if link.target else f"from {link.origin}"
        return (
            link.number, where, link.peer_tag or self.name_of_id(link.peer), link.peer or EMPTY, link.state,
            "yes" if link.extended else "no", relative(link.opened_at, datetime.now(UTC)),
            self._button("disconnect_link", link.number, "Close") if self.operable else "",
        )  # fmt: skip

    def members_table(self) -> SafeString:
        heads = ("Node", "Id", "Distance", "Over link", "Vote", "Last answer", "Key", "")
        rows = [self._own_row(), *(self._member_row(member) for member in self.members), *self._absent_rows()]
        return html_table(heads, rows)

    def _own_row(self) -> tuple[object, ...]:
        node = self.node
        name, id = f"{node.name} (this node)", node.current_id or EMPTY
        return name, id, EMPTY, EMPTY, vote_of(node), EMPTY, node.voter, ""

    def _member_row(self, member: Member) -> tuple[object, ...]:
        name, known = self.name(member), self.voters_here.get(member.voter)
        answered = EMPTY if member.answered_at is None else relative(member.answered_at, datetime.now(UTC))
        return (
            page_of(known.pk, name) if known is not None else name, member.member, _hops(member) or EMPTY,
            EMPTY if member.via is None else member.via, "yes" if member.voting else "no", answered,
            member.voter or "none: it knows no attributes",
            self._button("drop", member.member, "Drop") if self.operable and self.leads else "",
        )  # fmt: skip

    def _absent_rows(self) -> list[tuple[object, ...]]:
        electorate = electorate_of(self.node)
        if electorate is None:
            return []
        absent = electorate.voters - {self.node.voter} - {member.voter for member in self.members}
        rows: list[tuple[object, ...]] = []
        for voter in sorted(absent):
            known = self.voters_here.get(voter)
            name = page_of(known.pk, known.name) if known is not None else "unknown"
            rows.append((name, EMPTY, "away", EMPTY, "yes", EMPTY, voter, ""))
        return rows

    def votes_table(self) -> SafeString:
        votes = Vote.objects.filter(voter=self.node.voter)[:VOTES_SHOWN]
        rows = ((vote.term, vote.pledge, self.name_of_id(vote.pledge), moment(vote.at)) for vote in votes)
        return html_table(("Term", "Pledged to id", "Which is now", "When"), rows)

    def events_table(self) -> SafeString:
        events = Event.objects.filter(node=self.node)[:EVENTS_SHOWN]
        rows = ((f"{event.at:%Y-%m-%d %H:%M:%S}", event.kind, event.term, event.text) for event in events)
        return html_table(("When", "What", "Term", ""), rows)

    def _button(self, action: str, number: int, text: str) -> SafeString:
        address = reverse(f"admin:hydra_node_{action}", args=[self.node.pk, number])
        return format_html('<a href="{}">{}</a>', address, text)


def _hops(member: Member) -> str:
    return "" if member.hops == 0 else f"{member.hops:,} link{'' if member.hops == 1 else 's'} away"

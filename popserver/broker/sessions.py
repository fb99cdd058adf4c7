"""The connected clients, their groups, and what they hold."""

from __future__ import annotations

from popserver.broker.engine import Engine
from popserver.catalog.flow import Catalog
from popserver.clients.clients import Clients
from popserver.clients.commands import Commands
from popserver.clients.takeover import Takeover
from popserver.clients.waits import Waits
from popserver.cluster.servers import Servers
from popserver.database.notifications import LITE, LITE_LOST, LITE_SHARED
from popserver.lite.flow import LiteSubscriptions
from popserver.lite.registry import LiteClients
from popserver.maintenance.flow import Maintenance
from popserver.members.flow import GroupMembers, QueueLocks
from popserver.members.notices import GroupNotices
from popserver.settling.hold_release import HoldRelease


class Sessions:
    """What lasts as long as a client is connected."""

    def __init__(
        self, engine: Engine, catalog: Catalog, servers: Servers, maintenance: Maintenance, lite_subscriptions_max: int
    ) -> None:
        reader, writer, clock, background = engine.reader, engine.writer, engine.clock, engine.background
        self.waits = Waits()
        self.commands = Commands()
        self.hold_release = HoldRelease(writer, clock, background, servers)
        self.queue_locks = QueueLocks(writer, catalog)
        notices = GroupNotices(reader, background, clock)
        self.group_members = GroupMembers(
            reader, writer, catalog, background, notices, lambda client_id: self.clients.is_attached(client_id)
        )
        extend = self.hold_release.extend_client_holds
        self.clients = Clients(
            clock,
            background,
            self.hold_release.abandon_client,
            extend,
            extend if servers.is_shared else None,
            self.group_members,
            lambda client_id: self.lite.left(client_id),
        )
        self.takeover = Takeover(reader, background, maintenance, servers, self.clients, self.hold_release)
        subscribed = engine.budgets.add(
            "lite subscriptions", lite_subscriptions_max, "lite topics", "max_lite_subscriptions"
        )
        lite_clients = LiteClients(reader, engine.wakeups, subscribed)
        self.lite = LiteSubscriptions(
            reader, writer, catalog, clock, background, lite_clients, self.commands.lose_lite_topic
        )
        writer.effects.on_ready_lite(lite_clients.wake, lite_clients.topics)
        writer.effects.on_invalidated(LITE, self.lite.changed)
        writer.effects.on_invalidated(LITE_SHARED, self.lite.shared)
        writer.effects.on_invalidated(LITE_LOST, self.lite.lost)

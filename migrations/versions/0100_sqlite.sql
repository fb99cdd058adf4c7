CREATE TABLE topic (
    topic_id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    accepts TEXT NOT NULL,
    created_at_ms BIGINT NOT NULL,
    deleted_at_ms BIGINT,
    fifo_queues INTEGER DEFAULT '1' NOT NULL,
    lite_topics INTEGER DEFAULT '0' NOT NULL,
    lite_expires_ms BIGINT
)
;
CREATE UNIQUE INDEX topic_name ON topic (namespace, name) WHERE deleted_at_ms IS NULL
;
CREATE TABLE queue (
    queue_id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    topic_id BIGINT NOT NULL,
    number INTEGER NOT NULL,
    min_offset BIGINT NOT NULL,
    next_offset BIGINT NOT NULL,
    newest_stored_at_ms BIGINT DEFAULT '0' NOT NULL,
    lite_expired_offset BIGINT DEFAULT '0' NOT NULL,
    CONSTRAINT queue_number UNIQUE (topic_id, number)
)
;
CREATE TABLE consumer_group (
    group_id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    max_attempts INTEGER NOT NULL,
    intervals_ms TEXT NOT NULL,
    consume_from TEXT NOT NULL,
    history TEXT NOT NULL,
    mode TEXT,
    created_at_ms BIGINT NOT NULL,
    deleted_at_ms BIGINT,
    fifo_interval_ms INTEGER DEFAULT '3000' NOT NULL,
    lite TEXT CONSTRAINT consumer_group_lite CHECK (lite IN ('SHARED', 'EXCLUSIVE', 'WILDCARD')),
    CONSTRAINT consumer_group_history CHECK (history IN ('none', 'errors', 'all'))
)
;
CREATE UNIQUE INDEX consumer_group_name ON consumer_group (namespace, name) WHERE deleted_at_ms IS NULL
;
CREATE TABLE message (
    message_key INTEGER NOT NULL,
    topic_id BIGINT NOT NULL,
    copy_of BIGINT,
    copy_kind TEXT,
    message_id BLOB NOT NULL,
    stored_at_ms BIGINT NOT NULL,
    born_at_ms BIGINT NOT NULL,
    tag_hash INTEGER NOT NULL,
    tag TEXT,
    keys TEXT,
    properties TEXT,
    message_group TEXT,
    priority SMALLINT,
    message_type TEXT NOT NULL,
    body_encoding TEXT NOT NULL,
    born_host TEXT NOT NULL,
    trace_context TEXT,
    deliver_at_ms BIGINT,
    body BLOB NOT NULL,
    PRIMARY KEY (message_key),
    CONSTRAINT message_copy_kind CHECK (CASE WHEN copy_of IS NULL THEN copy_kind IS NULL ELSE copy_kind IS NOT NULL AND copy_kind IN ('DEAD_LETTER', 'RETRY', 'REPLACED_RETRY', 'REDRIVEN') END)
)
;
CREATE UNIQUE INDEX message_id_once ON message (message_id, (CASE WHEN copy_of IS NULL THEN topic_id END))
;
CREATE INDEX message_of_group ON message (message_group, message_key) WHERE message_group IS NOT NULL AND copy_of IS NULL
;
CREATE UNIQUE INDEX message_retry_once ON message (copy_of, topic_id) WHERE copy_kind = 'RETRY'
;
CREATE TABLE keyed_message (
    block BIGINT NOT NULL,
    key_hash INTEGER NOT NULL,
    slot SMALLINT NOT NULL,
    CONSTRAINT keyed_message_pk PRIMARY KEY (block, key_hash, slot)
)
 WITHOUT ROWID
;
CREATE TABLE pending (
    pending_id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    topic_id BIGINT NOT NULL,
    message_id BLOB NOT NULL,
    kind TEXT NOT NULL,
    due_at_ms BIGINT NOT NULL,
    stored_at_ms BIGINT NOT NULL,
    transaction_id TEXT,
    checks INTEGER DEFAULT '0' NOT NULL,
    client_id TEXT DEFAULT '' NOT NULL,
    enqueued SMALLINT DEFAULT '0' NOT NULL,
    born_at_ms BIGINT NOT NULL,
    tag TEXT,
    keys TEXT,
    properties TEXT,
    message_group TEXT,
    priority SMALLINT,
    message_type TEXT NOT NULL,
    body_encoding TEXT NOT NULL,
    born_host TEXT NOT NULL,
    trace_context TEXT,
    deliver_at_ms BIGINT,
    body BLOB NOT NULL,
    CONSTRAINT pending_id_once UNIQUE (message_id, topic_id, enqueued),
    CONSTRAINT pending_kind CHECK (kind IN ('DELAY', 'HALF'))
)
;
CREATE INDEX pending_of_topic ON pending (topic_id, due_at_ms)
;
CREATE INDEX pending_due ON pending (due_at_ms) WHERE kind = 'DELAY'
;
CREATE INDEX pending_check ON pending (topic_id, due_at_ms) WHERE kind = 'HALF'
;
CREATE INDEX pending_of_client ON pending (client_id) WHERE kind = 'HALF' AND client_id > ''
;
CREATE INDEX pending_of_group ON pending (topic_id, message_group) WHERE message_group IS NOT NULL
;
CREATE TABLE idempotency (
    topic_id BIGINT NOT NULL,
    idempotency_key TEXT NOT NULL,
    message_id BLOB NOT NULL,
    expires_at_ms BIGINT NOT NULL,
    CONSTRAINT idempotency_pk PRIMARY KEY (topic_id, idempotency_key)
)
 WITHOUT ROWID
;
CREATE INDEX idempotency_expires ON idempotency (expires_at_ms)
;
CREATE TABLE progress (
    group_id BIGINT NOT NULL,
    queue_id BIGINT NOT NULL,
    next_offset BIGINT NOT NULL,
    resets INTEGER DEFAULT '0' NOT NULL,
    start_offset BIGINT DEFAULT '0' NOT NULL,
    CONSTRAINT progress_pk PRIMARY KEY (group_id, queue_id)
)
 WITHOUT ROWID
;
CREATE TABLE message_group_progress (
    group_id BIGINT NOT NULL,
    queue_id BIGINT NOT NULL,
    message_group TEXT NOT NULL,
    topic_id BIGINT NOT NULL,
    next_offset BIGINT NOT NULL,
    open_since_ms BIGINT,
    subscriber TEXT DEFAULT '',
    is_single SMALLINT DEFAULT '0' NOT NULL,
    CONSTRAINT message_group_progress_pk PRIMARY KEY (group_id, queue_id, message_group)
)
 WITHOUT ROWID
;
CREATE INDEX message_group_open ON message_group_progress (group_id, topic_id, subscriber, open_since_ms) WHERE open_since_ms IS NOT NULL
;
CREATE TABLE message_group_start (
    group_id BIGINT NOT NULL,
    queue_id BIGINT NOT NULL,
    message_group TEXT NOT NULL,
    start_offset BIGINT NOT NULL,
    CONSTRAINT message_group_start_pk PRIMARY KEY (group_id, queue_id, message_group)
)
 WITHOUT ROWID
;
CREATE TABLE lite_topic (
    topic_id BIGINT NOT NULL,
    name TEXT NOT NULL,
    first_key BIGINT NOT NULL,
    created_at_ms BIGINT NOT NULL,
    CONSTRAINT lite_topic_pk PRIMARY KEY (topic_id, name)
)
 WITHOUT ROWID
;
CREATE TABLE lite_subscription (
    group_id BIGINT NOT NULL,
    topic_id BIGINT NOT NULL,
    lite_topic TEXT NOT NULL,
    client_id TEXT NOT NULL,
    queue_id BIGINT NOT NULL,
    CONSTRAINT lite_subscription_pk PRIMARY KEY (group_id, topic_id, lite_topic, client_id)
)
 WITHOUT ROWID
;
CREATE INDEX lite_subscription_of_client ON lite_subscription (client_id, group_id, topic_id)
;
CREATE TABLE lite_client (
    group_id BIGINT NOT NULL,
    topic_id BIGINT NOT NULL,
    client_id TEXT NOT NULL,
    synced_at_ms BIGINT NOT NULL,
    CONSTRAINT lite_client_pk PRIMARY KEY (client_id, group_id, topic_id)
)
 WITHOUT ROWID
;
CREATE INDEX lite_client_synced ON lite_client (synced_at_ms)
;
CREATE TABLE delivery (
    group_id BIGINT NOT NULL,
    message_key BIGINT NOT NULL,
    topic_id BIGINT NOT NULL,
    state TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    hold_id BIGINT NOT NULL,
    visible_at_ms BIGINT NOT NULL,
    holder TEXT NOT NULL,
    client_id TEXT NOT NULL,
    message_group TEXT,
    attempt_id TEXT,
    uncounted INTEGER DEFAULT '0' NOT NULL,
    CONSTRAINT delivery_pk PRIMARY KEY (group_id, message_key),
    CONSTRAINT delivery_state CHECK (state IN ('READY', 'INFLIGHT', 'WAITING_RETRY', 'ACKED_PROVISIONALLY', 'ACKED_IN_TRANSACTION')),
    CONSTRAINT delivery_holder CHECK (holder IN ('PUSH', 'SIMPLE', 'ORPHAN'))
)
 WITHOUT ROWID
;
CREATE INDEX delivery_ready ON delivery (group_id, topic_id, visible_at_ms) WHERE state IN ('READY') AND message_group IS NULL
;
CREATE INDEX delivery_of_group ON delivery (group_id, topic_id, message_group, message_key) WHERE message_group IS NOT NULL
;
CREATE INDEX delivery_attempt ON delivery (attempt_id) WHERE attempt_id IS NOT NULL
;
CREATE INDEX delivery_client ON delivery (client_id) WHERE holder = 'PUSH' OR holder = 'ORPHAN'
;
CREATE INDEX delivery_due ON delivery (visible_at_ms) WHERE state IN ('ACKED_IN_TRANSACTION', 'INFLIGHT', 'WAITING_RETRY')
;
CREATE TABLE dead_letter (
    dead_letter_id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    group_id BIGINT NOT NULL,
    origin_key BIGINT NOT NULL,
    origin_topic_id BIGINT NOT NULL,
    copy_key BIGINT NOT NULL,
    attempt INTEGER NOT NULL,
    reason TEXT NOT NULL,
    dead_at_ms BIGINT NOT NULL,
    redrive_state TEXT,
    plan_id TEXT,
    CONSTRAINT dead_letter_once UNIQUE (group_id, origin_key),
    CONSTRAINT dead_letter_redrive_state CHECK (redrive_state IN ('REDRIVEN', 'RESET'))
)
;
CREATE INDEX dead_letter_dead_at ON dead_letter (dead_at_ms)
;
CREATE INDEX dead_letter_of_group ON dead_letter (group_id, dead_letter_id)
;
CREATE INDEX dead_letter_copy ON dead_letter (copy_key)
;
CREATE TABLE redrive_plan (
    plan_id TEXT NOT NULL,
    group_id BIGINT NOT NULL,
    state TEXT NOT NULL,
    reason TEXT NOT NULL,
    selection TEXT NOT NULL,
    target_topic_id BIGINT,
    target_namespace TEXT,
    target_topic TEXT,
    created_by TEXT NOT NULL,
    created_at_ms BIGINT NOT NULL,
    finished_at_ms BIGINT,
    planned_up_to BIGINT NOT NULL,
    planned BIGINT DEFAULT '0' NOT NULL,
    redriven BIGINT DEFAULT '0' NOT NULL,
    skipped BIGINT DEFAULT '0' NOT NULL,
    PRIMARY KEY (plan_id),
    CONSTRAINT redrive_plan_state CHECK (state IN ('DRAFT', 'PLANNED', 'RUNNING', 'DONE', 'CANCELLED'))
)
;
CREATE INDEX redrive_plan_of_group ON redrive_plan (group_id, created_at_ms)
;
CREATE TABLE redrive (
    plan_id TEXT NOT NULL,
    dead_letter_id BIGINT NOT NULL,
    group_id BIGINT NOT NULL,
    origin_key BIGINT NOT NULL,
    origin_topic_id BIGINT NOT NULL,
    message_id BLOB NOT NULL,
    attempt INTEGER NOT NULL,
    dead_reason TEXT NOT NULL,
    dead_at_ms BIGINT NOT NULL,
    state TEXT NOT NULL,
    change TEXT NOT NULL,
    reason TEXT NOT NULL,
    target_topic_id BIGINT,
    note TEXT,
    redriven_key BIGINT,
    redriven_message_id BLOB,
    redriven_at_ms BIGINT,
    CONSTRAINT redrive_pk PRIMARY KEY (plan_id, dead_letter_id),
    CONSTRAINT redrive_state CHECK (state IN ('PLANNED', 'REDRIVEN', 'SKIPPED')),
    CONSTRAINT redrive_change CHECK (change IN ('NONE', 'REPAIR'))
)
 WITHOUT ROWID
;
CREATE INDEX redrive_of_origin ON redrive (origin_key, group_id)
;
CREATE INDEX redrive_planned ON redrive (plan_id, dead_letter_id) WHERE state = 'PLANNED'
;
CREATE INDEX redrive_of_key ON redrive (redriven_key, group_id) WHERE redriven_key IS NOT NULL
;
CREATE TABLE pause (
    group_id BIGINT NOT NULL,
    topic_id BIGINT NOT NULL,
    message_group TEXT NOT NULL,
    queue_id BIGINT,
    paused_at_ms BIGINT NOT NULL,
    paused_by TEXT NOT NULL,
    CONSTRAINT pause_pk PRIMARY KEY (group_id, topic_id, message_group)
)
 WITHOUT ROWID
;
CREATE TABLE history (
    history_id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    at_ms BIGINT NOT NULL,
    group_id BIGINT NOT NULL,
    message_key BIGINT NOT NULL,
    event TEXT NOT NULL,
    from_state TEXT NOT NULL,
    to_state TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    client_id TEXT NOT NULL,
    reason TEXT NOT NULL
)
;
CREATE INDEX history_message ON history (message_key, group_id)
;
CREATE TABLE server (
    server_id TEXT NOT NULL,
    address TEXT NOT NULL,
    last_seen_ms BIGINT NOT NULL,
    ahead_ms BIGINT DEFAULT '0' NOT NULL,
    PRIMARY KEY (server_id)
)
;
CREATE TABLE clock (
    clock_id INTEGER NOT NULL,
    system_ms BIGINT NOT NULL,
    server_ms BIGINT NOT NULL,
    doubted_ms BIGINT NOT NULL,
    doubt_left_ms BIGINT NOT NULL,
    confirmed BIGINT NOT NULL,
    PRIMARY KEY (clock_id)
)
;
CREATE TABLE client (
    client_id TEXT NOT NULL,
    server_id TEXT NOT NULL,
    last_seen_ms BIGINT NOT NULL,
    CONSTRAINT client_pk PRIMARY KEY (client_id, server_id)
)
 WITHOUT ROWID
;
CREATE INDEX client_last_seen ON client (last_seen_ms)
;
CREATE TABLE member (
    group_id BIGINT NOT NULL,
    client_id TEXT NOT NULL,
    server_id TEXT NOT NULL,
    model TEXT NOT NULL,
    subscription TEXT NOT NULL,
    joined_at_ms BIGINT NOT NULL,
    CONSTRAINT member_pk PRIMARY KEY (group_id, client_id),
    CONSTRAINT member_model CHECK (model IN ('CLUSTERING', 'BROADCASTING'))
)
 WITHOUT ROWID
;
CREATE INDEX member_of_server ON member (server_id)
;
CREATE TABLE queue_lock (
    group_id BIGINT NOT NULL,
    queue_id BIGINT NOT NULL,
    client_id TEXT NOT NULL,
    locked_until_ms BIGINT NOT NULL,
    CONSTRAINT queue_lock_pk PRIMARY KEY (group_id, queue_id)
)
 WITHOUT ROWID
;
CREATE TABLE chart_point (
    step_s INTEGER NOT NULL,
    slot INTEGER NOT NULL,
    kind TEXT NOT NULL,
    owner_id BIGINT NOT NULL,
    at_ms BIGINT NOT NULL,
    appended BIGINT,
    done BIGINT,
    ready BIGINT,
    inflight BIGINT,
    waiting_retry BIGINT,
    oldest_age_ms BIGINT,
    delivered BIGINT DEFAULT '0' NOT NULL,
    delay_ms BIGINT DEFAULT '0' NOT NULL,
    slow_ms BIGINT DEFAULT '0' NOT NULL,
    CONSTRAINT chart_point_pk PRIMARY KEY (step_s, slot, kind, owner_id),
    CONSTRAINT chart_point_kind CHECK (kind IN ('GROUP', 'TOPIC'))
)
 WITHOUT ROWID
;
CREATE TABLE alert (
    alert_id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    alert_key TEXT NOT NULL,
    kind TEXT NOT NULL,
    namespace TEXT NOT NULL,
    subject TEXT NOT NULL,
    sentence TEXT NOT NULL,
    next_step TEXT NOT NULL,
    page TEXT NOT NULL,
    began_at_ms BIGINT NOT NULL,
    ended_at_ms BIGINT,
    told SMALLINT DEFAULT '0' NOT NULL,
    failure TEXT DEFAULT '' NOT NULL
)
;
CREATE UNIQUE INDEX alert_open ON alert (alert_key) WHERE ended_at_ms IS NULL
;
CREATE TABLE acl_user (
    access_key TEXT NOT NULL,
    secret TEXT NOT NULL,
    is_admin SMALLINT DEFAULT '0' NOT NULL,
    disabled_at_ms BIGINT,
    created_at_ms BIGINT NOT NULL,
    PRIMARY KEY (access_key)
)
;
CREATE TABLE acl_policy (
    policy_id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    access_key TEXT NOT NULL,
    effect TEXT NOT NULL,
    actions TEXT NOT NULL,
    resource_kind TEXT NOT NULL,
    namespace TEXT NOT NULL,
    pattern TEXT NOT NULL,
    created_at_ms BIGINT NOT NULL,
    CONSTRAINT acl_policy_effect CHECK (effect IN ('ALLOW', 'DENY')),
    CONSTRAINT acl_policy_resource_kind CHECK (resource_kind IN ('TOPIC', 'GROUP')),
    CONSTRAINT acl_policy_once UNIQUE (access_key, effect, resource_kind, namespace, pattern)
)
;
CREATE VIEW message_state AS
SELECT t.namespace AS topic_namespace, t.name AS topic, m.message_id, m.message_key, q.number AS queue_id,
       m.message_key & 1099511627775 AS queue_offset, g.namespace AS group_namespace, g.name AS consumer_group,
       CASE WHEN l.group_id IS NOT NULL AND l.redrive_state IS NULL THEN 'DLQ'
            WHEN d.group_id IS NOT NULL THEN CASE d.state WHEN 'ACKED_PROVISIONALLY' THEN 'READY' WHEN 'ACKED_IN_TRANSACTION' THEN 'INFLIGHT' ELSE d.state END
            WHEN rd.group_id IS NOT NULL THEN CASE rd.state WHEN 'ACKED_PROVISIONALLY' THEN 'READY' WHEN 'ACKED_IN_TRANSACTION' THEN 'INFLIGHT' ELSE rd.state END
            WHEN (g.mode = 'PULL' OR rp.group_id IS NOT NULL) AND (r.redriven_key & 1099511627775) >= COALESCE(rp.next_offset, 0) THEN 'READY'
            WHEN p.group_id IS NULL THEN NULL
            WHEN (m.message_key & 1099511627775) >= p.next_offset THEN 'READY'
            WHEN b.next_offset <= (m.message_key & 1099511627775) THEN 'READY'
            ELSE 'COMMIT' END AS state,
       COALESCE(d.attempt, rd.attempt, CASE WHEN l.redrive_state IS NULL THEN l.attempt END) AS attempt,
       COALESCE(d.visible_at_ms, rd.visible_at_ms) AS visible_at_ms, COALESCE(d.client_id, rd.client_id) AS client_id,
       m.stored_at_ms, m.tag, m.keys, CASE WHEN m.message_type <> 'LITE' THEN m.message_group END AS message_group,
       CASE WHEN m.message_type = 'LITE' THEN m.message_group END AS lite_topic
FROM message m
JOIN queue q ON q.queue_id = (m.message_key >> 40)
JOIN topic t ON t.topic_id = q.topic_id
JOIN progress p ON p.queue_id = q.queue_id
JOIN consumer_group g ON g.group_id = p.group_id
LEFT JOIN delivery d ON d.group_id = g.group_id AND d.message_key = m.message_key
LEFT JOIN dead_letter l ON l.group_id = g.group_id AND l.origin_key = m.message_key
LEFT JOIN redrive r ON r.plan_id = l.plan_id AND r.dead_letter_id = l.dead_letter_id AND l.origin_key = m.message_key
      AND l.redrive_state = 'REDRIVEN' AND r.target_topic_id IS NULL
LEFT JOIN delivery rd ON rd.group_id = g.group_id AND rd.message_key = r.redriven_key
LEFT JOIN progress rp ON rp.group_id = g.group_id AND rp.queue_id = (r.redriven_key >> 40)
LEFT JOIN message_group_progress b ON b.group_id = g.group_id AND b.queue_id = p.queue_id
      AND b.message_group = m.message_group AND m.copy_of IS NULL
WHERE t.deleted_at_ms IS NULL AND g.deleted_at_ms IS NULL
;
CREATE VIEW group_lag AS
SELECT g.group_id, g.namespace AS group_namespace, g.name AS consumer_group, t.topic_id,
       t.namespace AS topic_namespace, t.name AS topic,
       s.beyond - COALESCE(d.beyond, 0) + COALESCE(d.ready, 0) + COALESCE(b.behind, 0) AS ready,
       COALESCE(d.inflight, 0) AS inflight,
       COALESCE(d.waiting_retry, 0) AS waiting_retry, COALESCE(l.dead_letters, 0) AS dead_letters,
       s.stored,
       CASE WHEN s.beyond - COALESCE(d.beyond, 0) + COALESCE(d.ready, 0) + COALESCE(b.behind, 0) = 0 THEN NULL
            WHEN COALESCE(s.oldest_ms, 253402300799999) <= COALESCE(d.oldest_ms, 253402300799999)
                 AND COALESCE(s.oldest_ms, 253402300799999) <= COALESCE(b.oldest_ms, 253402300799999) THEN s.oldest_ms
            WHEN COALESCE(d.oldest_ms, 253402300799999) <= COALESCE(b.oldest_ms, 253402300799999) THEN d.oldest_ms
            ELSE b.oldest_ms END AS oldest_ready_ms
FROM (SELECT p.group_id, q.topic_id,
             SUM(q.next_offset - CASE WHEN p.next_offset < q.min_offset THEN q.min_offset
                                      ELSE p.next_offset END) AS beyond,
             SUM(q.next_offset - q.min_offset) AS stored,
             MIN(CASE WHEN p.next_offset < q.next_offset AND q.min_offset < q.next_offset THEN
                 (SELECT m.stored_at_ms FROM message m
                  WHERE m.message_key >= ((p.queue_id << 40)
                        | CASE WHEN p.next_offset < q.min_offset THEN q.min_offset ELSE p.next_offset END)
                  AND m.message_key < ((p.queue_id + 1) << 40)
                  ORDER BY m.message_key LIMIT 1) END) AS oldest_ms
      FROM progress p JOIN queue q ON q.queue_id = p.queue_id GROUP BY p.group_id, q.topic_id) s
JOIN consumer_group g ON g.group_id = s.group_id
JOIN topic t ON t.topic_id = s.topic_id
LEFT JOIN (SELECT e.group_id, e.topic_id, SUM(e.ready) AS ready, SUM(e.inflight) AS inflight,
                  SUM(e.waiting_retry) AS waiting_retry, SUM(e.beyond) AS beyond, MIN(m.stored_at_ms) AS oldest_ms
           FROM (
           SELECT d.group_id, d.topic_id,
                  SUM(CASE WHEN d.state IN ('ACKED_PROVISIONALLY', 'READY') THEN 1 ELSE 0 END) AS ready,
                  SUM(CASE WHEN d.state IN ('ACKED_IN_TRANSACTION', 'INFLIGHT') THEN 1 ELSE 0 END) AS inflight,
                  SUM(CASE WHEN d.state IN ('WAITING_RETRY') THEN 1 ELSE 0 END) AS waiting_retry,
                  SUM(CASE WHEN (d.message_key & 1099511627775) >= p.next_offset THEN 1 ELSE 0 END) AS beyond,
                  MIN(CASE WHEN d.state IN ('ACKED_PROVISIONALLY', 'READY') THEN d.message_key END) AS first_key
           FROM delivery d
           LEFT JOIN progress p ON p.group_id = d.group_id AND p.queue_id = (d.message_key >> 40)
           GROUP BY d.group_id, d.topic_id, (d.message_key >> 40)) e
           LEFT JOIN message m ON m.message_key = e.first_key
           GROUP BY e.group_id, e.topic_id) d ON d.group_id = s.group_id AND d.topic_id = s.topic_id
LEFT JOIN (SELECT b.group_id, q.topic_id, COUNT(*) AS behind, MIN(m.stored_at_ms) AS oldest_ms
           FROM message_group_progress b
           JOIN queue q ON q.queue_id = b.queue_id
           JOIN progress p ON p.group_id = b.group_id AND p.queue_id = b.queue_id
           JOIN message m ON m.message_group = b.message_group AND m.copy_of IS NULL
                AND m.message_key >= ((b.queue_id << 40) | b.next_offset)
                AND m.message_key < ((b.queue_id << 40) | p.next_offset)
           GROUP BY b.group_id, q.topic_id) b ON b.group_id = s.group_id AND b.topic_id = s.topic_id
LEFT JOIN (SELECT group_id, origin_topic_id, COUNT(*) AS dead_letters
           FROM dead_letter WHERE redrive_state IS NULL GROUP BY group_id, origin_topic_id) l
       ON l.group_id = s.group_id AND l.origin_topic_id = s.topic_id
WHERE t.deleted_at_ms IS NULL AND g.deleted_at_ms IS NULL
;
CREATE VIEW dead_letters AS
SELECT l.dead_letter_id AS id, g.namespace AS group_namespace, g.name AS consumer_group,
       t.namespace AS topic_namespace, t.name AS topic, m.message_id, m.tag, m.keys, CASE WHEN m.message_type <> 'LITE' THEN m.message_group END AS message_group,
       CASE WHEN m.message_type = 'LITE' THEN m.message_group END AS lite_topic, m.message_type,
       oq.number AS queue_id, l.origin_key & 1099511627775 AS queue_offset, l.origin_key, l.copy_key, m.properties,
       m.body_encoding, m.born_at_ms, m.stored_at_ms, l.dead_at_ms, l.attempt AS delivery_attempt, l.reason,
       l.redrive_state, l.plan_id, m.body
FROM dead_letter l
JOIN consumer_group g ON g.group_id = l.group_id
LEFT JOIN topic t ON t.topic_id = l.origin_topic_id
LEFT JOIN queue oq ON oq.queue_id = (l.origin_key >> 40)
JOIN message m ON m.message_key = l.copy_key
;
CREATE VIEW lineage AS
SELECT r.plan_id, g.namespace AS group_namespace, g.name AS consumer_group, t.namespace AS topic_namespace,
       t.name AS topic, r.message_id, oq.number AS queue_id, r.origin_key & 1099511627775 AS queue_offset,
       r.dead_letter_id, r.dead_at_ms, r.attempt AS delivery_attempt, r.dead_reason, r.reason, r.change,
       rp.target_topic, r.state, r.note, r.redriven_message_id, r.redriven_at_ms,
       CASE WHEN r.state <> 'REDRIVEN' THEN NULL
            WHEN l.group_id IS NOT NULL THEN 'DLQ'
            WHEN r.note IS NOT NULL THEN NULL
            WHEN d.group_id IS NOT NULL THEN CASE d.state WHEN 'ACKED_PROVISIONALLY' THEN 'READY' WHEN 'ACKED_IN_TRANSACTION' THEN 'INFLIGHT' ELSE d.state END
            WHEN own.group_id IS NOT NULL THEN
                 (SELECT s.state FROM message_state s WHERE s.message_key = r.origin_key
                         AND s.group_namespace = g.namespace AND s.consumer_group = g.name)
            WHEN r.target_topic_id IS NOT NULL AND p.group_id IS NULL THEN NULL
            WHEN (g.mode = 'PULL' OR p.group_id IS NOT NULL) AND (r.redriven_key & 1099511627775) >= COALESCE(p.next_offset, 0) THEN 'READY'
            ELSE 'COMMIT' END AS outcome
FROM redrive r
JOIN consumer_group g ON g.group_id = r.group_id
LEFT JOIN topic t ON t.topic_id = r.origin_topic_id
LEFT JOIN queue oq ON oq.queue_id = (r.origin_key >> 40)
LEFT JOIN redrive_plan rp ON rp.plan_id = r.plan_id
LEFT JOIN dead_letter l ON l.group_id = r.group_id AND l.dead_letter_id > r.dead_letter_id
      AND l.origin_key = CASE WHEN r.target_topic_id IS NULL THEN r.origin_key ELSE r.redriven_key END
LEFT JOIN dead_letter own ON own.dead_letter_id = r.dead_letter_id AND own.redrive_state = 'RESET'
      AND r.target_topic_id IS NULL
LEFT JOIN delivery d ON d.group_id = r.group_id AND d.message_key = r.redriven_key
LEFT JOIN progress p ON p.group_id = r.group_id AND p.queue_id = (r.redriven_key >> 40)
;
CREATE VIEW group_pauses AS
SELECT g.namespace AS group_namespace, g.name AS consumer_group, t.namespace AS topic_namespace, t.name AS topic,
       NULLIF(x.message_group, '') AS message_group, x.paused_at_ms, x.paused_by
FROM pause x
JOIN consumer_group g ON g.group_id = x.group_id
LEFT JOIN topic t ON t.topic_id = x.topic_id
WHERE g.deleted_at_ms IS NULL AND (x.topic_id = 0 OR t.deleted_at_ms IS NULL)

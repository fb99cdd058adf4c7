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


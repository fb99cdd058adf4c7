-- Functions for users' own transactions. Each locks as few rows as possible, because an open transaction must never make
-- the broker wait. `popserver/database/migrate.py` fills in the words after a colon; `:schema` is the schema with the
-- tables. The SQLSTATE of a refusal is PM and the last three digits of its code in the protocol. Texts with a backslash
-- are written as E'…', because the settings of a user's session may change the meaning of other texts.

CREATE FUNCTION :schema.popmq_enqueue(
    topic text,
    body bytea,
    message_id text DEFAULT NULL,
    tag text DEFAULT NULL,
    keys text[] DEFAULT NULL,
    properties jsonb DEFAULT NULL,
    message_group text DEFAULT NULL,
    deliver_at_ms bigint DEFAULT NULL,
    priority integer DEFAULT NULL,
    trace_context text DEFAULT NULL,
    born_at_ms bigint DEFAULT NULL,
    born_host text DEFAULT '',
    namespace text DEFAULT ''
) RETURNS text LANGUAGE plpgsql SECURITY DEFINER SET search_path = :schema, pg_temp AS $popmq$
-- Stores one message that enters its topic after the caller's commit: at once, or when it is due. Returns its id. A
-- repeated id, and a repeated idempotency key, store nothing and return the first one's.
#variable_conflict use_variable
DECLARE
    target record;
    stored_id bytea;
    first_id bytea;
    now_ms constant bigint := floor(extract(epoch FROM clock_timestamp()) * 1000);
    kind constant text := CASE WHEN message_group IS NOT NULL THEN :type_fifo WHEN deliver_at_ms IS NOT NULL THEN :type_delay
                               WHEN priority IS NOT NULL THEN :type_priority ELSE :type_normal END;
    control constant text := E'[\\u0001-\\u001f\\u007f-\\u009f]';
    size integer;
    each record;
BEGIN
    IF topic ^@ :dead_letter_prefix OR topic ^@ :retry_prefix THEN
        RAISE EXCEPTION USING ERRCODE = 'PM002', MESSAGE = format(
            'only the server sends to topic ''%s''; send to the topic its messages came from', topic);
    END IF;
    SELECT t.topic_id, t.accepts, t.closed_because INTO target FROM topic t
    WHERE t.namespace = popmq_enqueue.namespace AND t.name = popmq_enqueue.topic AND t.deleted_at_ms IS NULL;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'PM402', MESSAGE = format(
            'topic ''%s'' does not exist; create it with: popmq topic create %s', topic, topic);
    END IF;
    IF target.closed_because IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'PM300', MESSAGE = format(
            'topic ''%s'' is closed for producers: %s', topic, target.closed_because);
    END IF;
    IF num_nonnulls(message_group, deliver_at_ms, priority) > 1 THEN
        RAISE EXCEPTION USING ERRCODE = 'PM014', MESSAGE =
            'message_group, deliver_at_ms and priority exclude each other; give one of them';
    END IF;
    IF NOT kind = ANY (string_to_array(target.accepts, ',')) THEN
        RAISE EXCEPTION USING ERRCODE = 'PM014', MESSAGE = format(
            'topic ''%s'' takes %s messages, not %s ones; send to a topic that does', topic, target.accepts, kind);
    END IF;
    IF coalesce(octet_length(body), 0) = 0 THEN
        RAISE EXCEPTION USING ERRCODE = 'PM302', MESSAGE = 'the message''s body is empty; give at least one byte';
    ELSIF octet_length(body) > :body_bytes_max THEN
        RAISE EXCEPTION USING ERRCODE = 'PM301', MESSAGE = format(
            'the message''s body has %s bytes, at most %s are allowed; send a reference instead',
            octet_length(body), :body_bytes_max);
    END IF;
    IF message_id IS NOT NULL AND (message_id !~ E'\\S' OR length(message_id) > :message_id_length_max) THEN
        RAISE EXCEPTION USING ERRCODE = 'PM009', MESSAGE = format(
            'message id ''%s'' is blank or longer than %s characters; leave it out and one is drawn',
            left(message_id, 32), :message_id_length_max);
    END IF;
    IF tag IS NOT NULL AND (tag !~ E'\\S' OR tag ~ control OR position('|' IN tag) > 0) THEN
        RAISE EXCEPTION USING ERRCODE = 'PM004', MESSAGE = format(
            'tag ''%s'' is blank, or holds ''|'' or a control character; leave it out or change it', left(tag, 64));
    END IF;
    IF message_group IS NOT NULL
       AND (message_group !~ E'\\S' OR message_group ~ control
            OR octet_length(message_group) > :message_group_bytes_max) THEN
        RAISE EXCEPTION USING ERRCODE = 'PM006', MESSAGE = format(
            'message group ''%s'' is blank, holds a control character or has more than %s bytes',
            left(message_group, 64), :message_group_bytes_max);
    END IF;
    IF length(trace_context) > 1024 OR length(born_host) > 255 THEN
        RAISE EXCEPTION USING ERRCODE = 'PM101', MESSAGE =
            'trace_context has more than 1024 characters, or born_host more than 255';
    END IF;
    IF deliver_at_ms IS NOT NULL AND deliver_at_ms NOT BETWEEN 0 AND :time_ms_max THEN
        RAISE EXCEPTION USING ERRCODE = 'PM012', MESSAGE = format(
            'deliver_at_ms %s is no time between the years 1970 and 9999; give epoch milliseconds', deliver_at_ms);
    END IF;
    IF priority NOT BETWEEN 0 AND :priority_max THEN
        RAISE EXCEPTION USING ERRCODE = 'PM000', MESSAGE = format(
            'priority %s is not between 0 and %s', priority, :priority_max);
    END IF;
    size := octet_length(coalesce(tag, ''));
    FOR each IN SELECT unnest(keys) AS word LOOP
        IF each.word IS NULL OR each.word !~ E'\\S' OR each.word ~ control THEN
            RAISE EXCEPTION USING ERRCODE = 'PM005', MESSAGE = format(
                'key ''%s'' is blank or holds a control character', left(each.word, 64));
        END IF;
        size := size + octet_length(each.word);
    END LOOP;
    IF jsonb_typeof(properties) <> 'object' THEN
        RAISE EXCEPTION USING ERRCODE = 'PM007', MESSAGE =
            'the properties are no JSON object of texts; write {"name": "value"}';
    END IF;
    FOR each IN SELECT p.key AS name, p.value FROM jsonb_each(properties) p LOOP
        IF jsonb_typeof(each.value) <> 'string' THEN
            RAISE EXCEPTION USING ERRCODE = 'PM007', MESSAGE = format(
                'the value of property ''%s'' is %s, not a text', left(each.name, 64), left(each.value::text, 64));
        ELSIF each.name !~ E'\\S' OR each.name ~ control OR each.value #>> '{}' ~ control THEN
            RAISE EXCEPTION USING ERRCODE = 'PM007', MESSAGE = format(
                'property ''%s'' has a blank name, or a control character in its name or value',
                left(each.name, 64));
        ELSIF each.name IN (:reserved_properties) THEN
            RAISE EXCEPTION USING ERRCODE = 'PM007', MESSAGE = format(
                'property name ''%s'' is reserved for the system; choose another', each.name);
        END IF;
        IF each.name = :idempotency_property
           AND (each.value #>> '{}' !~ E'\\S' OR octet_length(each.value #>> '{}') > :idempotency_bytes_max) THEN
            RAISE EXCEPTION USING ERRCODE = 'PM007', MESSAGE = format(
                'property %s ''%s'' is blank or has more than %s bytes', each.name, left(each.value #>> '{}', 32),
                :idempotency_bytes_max);
        END IF;
        size := size + octet_length(each.name) + octet_length(each.value #>> '{}');
    END LOOP;
    IF size > :properties_bytes_max
       OR (SELECT count(*) FROM jsonb_object_keys(properties)) > :properties_max THEN
        RAISE EXCEPTION USING ERRCODE = 'PM101', MESSAGE = format(
            'properties, tag and keys have %s bytes together, at most %s and %s properties are allowed', size,
            :properties_bytes_max, :properties_max);
    END IF;

    -- Without one: an id that grows with time, like those of the clients.
    message_id := coalesce(message_id, '01' || upper(
        lpad(to_hex(now_ms), 12, '0') || left(replace(gen_random_uuid()::text, '-', ''), 20)));
    stored_id := CASE WHEN message_id ~ '^01[0-9A-F]{32}$' THEN decode(message_id, 'hex')
                      ELSE E'\\x00'::bytea || convert_to(message_id, 'UTF8') END;
    -- A key whose message was cancelled before it entered its topic is free again.
    SELECT i.message_id INTO first_id FROM idempotency i
    WHERE i.topic_id = target.topic_id AND i.idempotency_key = properties ->> :idempotency_property
      AND i.expires_at_ms > now_ms
      AND (EXISTS (SELECT FROM message m WHERE m.message_id = i.message_id AND m.topic_id = i.topic_id
                   AND m.copy_of IS NULL)
           OR EXISTS (SELECT FROM pending p WHERE p.message_id = i.message_id AND p.topic_id = i.topic_id));
    IF FOUND THEN
        RETURN CASE WHEN get_byte(first_id, 0) = 0 THEN convert_from(substring(first_id FROM 2), 'UTF8')
                    ELSE upper(encode(first_id, 'hex')) END;
    END IF;
    IF EXISTS (SELECT FROM message m WHERE m.message_id = stored_id AND m.topic_id = target.topic_id
               AND m.copy_of IS NULL)
       OR EXISTS (SELECT FROM pending p WHERE p.message_id = stored_id AND p.topic_id = target.topic_id) THEN
        RETURN message_id;
    END IF;
    INSERT INTO pending (topic_id, message_id, kind, due_at_ms, stored_at_ms, enqueued, born_at_ms, tag, keys, properties,
                         message_group, priority, message_type, body_encoding, born_host, trace_context,
                         deliver_at_ms, body)
    VALUES (target.topic_id, stored_id, :pending_delay, coalesce(deliver_at_ms, 0), now_ms, 1, coalesce(born_at_ms, now_ms), tag,
            CASE WHEN cardinality(keys) > 0 THEN to_json(keys)::text END,
            CASE WHEN properties <> '{}' THEN properties::text END,
            message_group, priority, kind, :body_identity, coalesce(born_host, ''), trace_context,
            deliver_at_ms, body)
    ON CONFLICT DO NOTHING;
    PERFORM pg_notify(:channel, :signal_pending);
    RETURN message_id;
END
$popmq$;

CREATE FUNCTION :schema.popmq_ack(receipt_handle text)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = :schema, pg_temp AS $popmq$
-- Ends the hold in the caller's transaction, or refuses a handle that is no longer valid. It changes only this
-- delivery. The row, not the clock, says whether the hold is current: until the server ends the hold, no other consumer
-- has the message, and until the caller's commit none gets it.
DECLARE
    handle bytea;
    held record;
BEGIN
    IF receipt_handle !~ '^[A-Za-z0-9+/]{39}=$'
       OR get_byte(decode(receipt_handle, 'base64'), 0) NOT IN (:handle_versions) THEN
        RAISE EXCEPTION USING ERRCODE = 'PM013', MESSAGE = format(
            'receipt handle ''%s'' is malformed; give the one that came with the message', left(receipt_handle, 48));
    END IF;
    handle := decode(receipt_handle, 'base64');
    SELECT d.group_id, d.message_key, d.topic_id, d.message_group, d.attempt, d.client_id INTO held FROM delivery d
    WHERE d.group_id = ('x' || encode(substring(handle FROM 2 FOR 4), 'hex'))::bit(32)::bigint
      AND d.message_key = ('x' || encode(substring(handle FROM 6 FOR 8), 'hex'))::bit(64)::bigint
      AND d.hold_id = ('x' || encode(substring(handle FROM 14 FOR 8), 'hex'))::bit(64)::bigint
      AND d.state IN (:held)
    FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'PM013', MESSAGE =
            CASE WHEN current_setting('transaction_isolation') IN ('repeatable read', 'serializable')
            THEN format('the receipt handle is not valid in this transaction, which is %s: the message is done, its hold ended,'
                        ' or it was delivered after the transaction''s first statement. Roll back; receive before the'
                        ' transaction begins, or use read committed', current_setting('transaction_isolation'))
            ELSE 'the receipt handle is no longer valid: the message is done, or its hold ended and it is delivered again.'
                 ' Roll back; use a longer invisible duration if this happens often' END;
    END IF;
    IF held.message_group IS NULL THEN
        DELETE FROM delivery d WHERE d.group_id = held.group_id AND d.message_key = held.message_key;
        INSERT INTO history (at_ms, group_id, message_key, event, from_state, to_state, attempt, client_id, reason)
        SELECT floor(extract(epoch FROM clock_timestamp()) * 1000), held.group_id, held.message_key, :ack, :inflight,
               :commit, held.attempt, held.client_id, ''
        FROM consumer_group g WHERE g.group_id = held.group_id AND g.history = :history_all;
        RETURN;
    END IF;
    -- A message behind an un-acked one would be delivered again with it, even after a write here. The index of message
    -- groups begins with this expression.
    IF EXISTS (SELECT FROM delivery d WHERE d.group_id + 0 = held.group_id AND d.topic_id = held.topic_id
               AND d.message_group = held.message_group AND d.message_key < held.message_key
               AND d.state NOT IN (:acked)) THEN
        RAISE EXCEPTION USING ERRCODE = 'PM800', MESSAGE = format(
            'a message before this one in message group ''%s'' is not acked; ack them in their order',
            held.message_group);
    END IF;
    -- The server ends the message after the commit, and then updates its message group.
    UPDATE delivery d SET visible_at_ms = 0, state = :acked_in_transaction
    WHERE d.group_id = held.group_id AND d.message_key = held.message_key;
    PERFORM pg_notify(:channel, :signal_due);
END
$popmq$;

-- The functions run with their owner's rights, so no user may call them without a GRANT.
REVOKE ALL ON FUNCTION :schema.popmq_enqueue FROM PUBLIC;
REVOKE ALL ON FUNCTION :schema.popmq_ack FROM PUBLIC;

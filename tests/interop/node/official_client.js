// The official Node client at the end of a pipe.
//
// One JSON command per line on stdin, one JSON answer per line on stdout; `clients/official_client.py` speaks the
// same. What a push consumer's listener hears comes unasked. Durations are seconds.
'use strict';

const { createInterface } = require('node:readline');
const {
  ConsumeResult, ConsumeResultSuspend, FilterExpression, LitePushConsumerImpl, Producer, PushConsumer, SimpleConsumer,
} = require('rocketmq-client-nodejs');

// Filter types by their number on the wire: the client does not export their names.
const TAG = 1;
const SQL = 2;

// By default 3 s, which a busy machine may need for an ordinary answer.
const REQUEST_TIMEOUT_MS = 10_000;

const clients = new Map();
const listeners = new Map();
const received = new Map();
const transactions = new Map();
// As the protocol numbers them.
const RESOLUTIONS = { UNKNOWN: 0, COMMIT: 1, ROLLBACK: 2 };

function say(event) {
  process.stdout.write(`${JSON.stringify(event)}\n`);
}

class NoSuchCall extends Error {}

// Fails the first `fail` attempts of a message (`how`: by a result, or by throwing); may wait to be released. With
// `suspend_s` it suspends a message so many times, whose attempt stays the same.
class Listener {
  constructor(command) {
    this.command = command;
    this.suspended = new Map();
    this.released = new Promise(resolve => { this.release = resolve; });
    if (!command.waits) this.release();
  }

  async consume(message) {
    say({ heard: this.command.client, message: described(message) });
    await this.released;
    const isGood = this.command.poison && message.body.toString() !== this.command.poison;
    if (this.command.suspend_s && !isGood) return this.suspend(message);
    if (isGood || message.deliveryAttempt > this.command.fail) return ConsumeResult.SUCCESS;
    if (this.command.how === 'raise') throw new Error('the listener throws on purpose');
    return ConsumeResult.FAILURE;
  }

  suspend(message) {
    const before = this.suspended.get(message.messageId) ?? 0;
    this.suspended.set(message.messageId, before + 1);
    return before < this.command.fail ? ConsumeResultSuspend.of(this.command.suspend_s * 1000) : ConsumeResult.SUCCESS;
  }
}

function subscriptions(command) {
  const type = command.sql ? SQL : TAG;
  return new Map(Object.entries(command.topics).map(
    ([ topic, expression ]) => [ topic, new FilterExpression(expression, type) ]));
}

const opens = {
  producer: (command, options) => new Producer({
    ...options,
    topics: Object.keys(command.topics),
    checker: command.decides ? {
      async check(message) {
        say({ heard: command.client, message: described(message) });
        return RESOLUTIONS[command.decides];
      },
    } : undefined,
  }),
  simple: (command, options) => new SimpleConsumer({
    ...options,
    consumerGroup: command.group,
    subscriptions: subscriptions(command),
    awaitDuration: command.await_s * 1000,
  }),
  lite: (command, options) => new LitePushConsumerImpl({
    ...options,
    consumerGroup: command.group,
    subscriptions: subscriptions(command),
    bindTopic: Object.keys(command.topics)[0],
    messageListener: new Listener(command),
  }),
  push: (command, options) => {
    const messageListener = new Listener(command);
    listeners.set(command.client, messageListener);
    return new PushConsumer({
      ...options, consumerGroup: command.group, subscriptions: subscriptions(command), messageListener,
    });
  },
};

const commands = {
  async open(command) {
    if (!(command.kind in opens)) throw new NoSuchCall(command.kind);
    const client = opens[command.kind](command, {
      endpoints: command.endpoint, namespace: command.namespace, sslEnabled: 'OFFICIAL_TLS' in process.env,
      requestTimeout: REQUEST_TIMEOUT_MS,
      sessionCredentials: process.env.OFFICIAL_ACCESS_KEY ? {
        accessKey: process.env.OFFICIAL_ACCESS_KEY, accessSecret: process.env.OFFICIAL_ACCESS_SECRET,
      } : undefined,
    });
    await client.startup();
    clients.set(command.client, client);
    return { client_id: client.clientId };
  },

  async send(command) {
    const producer = clients.get(command.client);
    const transaction = command.half ? producer.beginTransaction() : undefined;
    const receipt = await producer.send({
      topic: command.topic,
      body: Buffer.from(command.body),
      tag: command.tag ?? undefined,
      keys: command.keys,
      properties: new Map(Object.entries(command.properties)),
      deliveryTimestamp: command.deliver_at_s === null ? undefined : new Date(command.deliver_at_s * 1000),
      messageGroup: command.message_group ?? undefined,
      priority: command.priority ?? undefined,
      liteTopic: command.lite_topic ?? undefined,
    }, transaction);
    if (transaction) transactions.set(receipt.messageId, transaction);
    return {
      message_id: receipt.messageId,
      offset: receipt.offset,
      recall_handle: receipt.recallHandle,
      transaction_id: receipt.transactionId,
    };
  },

  async end(command) {
    const transaction = transactions.get(command.message_id);
    await (command.resolution === 'COMMIT' ? transaction.commit() : transaction.rollback());
    return {};
  },

  async recall(command) {
    const receipt = await clients.get(command.client).recallMessage(command.topic, command.handle);
    return { message_id: receipt.messageId };
  },

  async receive(command) {
    const messages = await clients.get(command.client).receive(command.count, command.invisible_s * 1000);
    return { messages: messages.map(described) };
  },

  async ack(command) {
    await clients.get(command.client).ack(held(command));
    return {};
  },

  async change_invisible(command) {
    const message = held(command);
    await clients.get(command.client).changeInvisibleDuration(message, command.invisible_s * 1000);
    return { handle: message.receiptHandle };
  },

  async subscribe_lite(command) {
    for (const name of command.lite_topics) await clients.get(command.client).subscribeLite(name);
    return {};
  },

  async unsubscribe_lite(command) {
    await clients.get(command.client).unsubscribeLite(command.lite_topic);
    return {};
  },

  async lite_topics(command) {
    return { lite_topics: [ ...clients.get(command.client).getLiteTopicSet() ].sort() };
  },

  async release(command) {
    listeners.get(command.client).release();
    return {};
  },

  async close(command) {
    const client = clients.get(command.client);
    clients.delete(command.client);
    await client.shutdown();
    return {};
  },
};

// The message a handle belongs to, carrying just that handle: the client itself remembers the newest alone.
function held(command) {
  const message = received.get(command.token);
  message.receiptHandle = command.handle;
  return message;
}

function described(message) {
  const token = `${message.messageId}/${message.deliveryAttempt}/${message.receiptHandle}`;
  received.set(token, message);
  return {
    token,
    message_id: message.messageId,
    topic: message.topic,
    body: message.body.toString(),
    tag: message.tag || null,
    keys: [ ...message.keys ].sort(),
    properties: Object.fromEntries(message.properties),
    attempt: message.deliveryAttempt,
    message_group: message.messageGroup || null,
    priority: message.priority ?? null,
    lite_topic: message.liteTopic || null,
    handle: message.receiptHandle,
    corrupted: Boolean(message.corrupted),
  };
}

async function answer(command) {
  let said;
  try {
    said = await commands[command.do](command);
  } catch (error) {
    const cause = error.cause ?? error;
    said = { refused: cause.constructor.name, code: cause.code ?? null, words: cause.message };
  }
  say({ answer: command.number, ...said });
}

createInterface({ input: process.stdin })
  .on('line', line => answer(JSON.parse(line)))
  .on('close', () => process.exit(0));

//! The official Rust client at the end of a pipe.
//!
//! One JSON command per line on stdin, one JSON answer per line on stdout; `clients/official_client.py` speaks the same.
//! This client has a producer and a simple consumer; what else is asked of it is answered `NoSuchCall`. Durations are
//! whole seconds. The client's log goes to stderr.

use std::collections::HashMap;
use std::env;
use std::sync::Arc;
use std::time::Duration;

use rocketmq::conf::{ClientOption, ProducerOption, SimpleConsumerOption};
use rocketmq::error::ClientError;
use rocketmq::model::common::{FilterExpression, FilterType};
use rocketmq::model::message::{MessageBuilder, MessageView};
use rocketmq::model::transaction::{Transaction, TransactionResolution};
use rocketmq::{Producer, SimpleConsumer};
use serde_json::{json, Value};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::sync::{oneshot, Mutex};

/// By default 3 s, which a busy machine may need for an ordinary answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

struct Refused {
    kind: &'static str,
    words: String,
}

impl From<ClientError> for Refused {
    fn from(error: ClientError) -> Self {
        Refused { kind: "ClientError", words: format!("{error}: {}, {:?}", error.message(), error.context()) }
    }
}

type Said = Result<Value, Refused>;

/// Half messages that nobody has decided about: one task each waits for the decision, and says how it went.
type Undecided = oneshot::Sender<(bool, oneshot::Sender<Result<(), ClientError>>)>;

struct Consumer {
    client: SimpleConsumer,
    topic: String,
    filter: FilterExpression,
}

#[derive(Default)]
struct Program {
    producers: Mutex<HashMap<String, Arc<Producer>>>,
    consumers: Mutex<HashMap<String, Arc<Consumer>>>,
    received: Mutex<HashMap<String, Arc<MessageView>>>,
    undecided: Mutex<HashMap<String, Undecided>>,
}

fn text<'a>(command: &'a Value, name: &str) -> &'a str {
    command[name].as_str().unwrap_or("")
}

fn no_such_call<T>(what: &str) -> Result<T, Refused> {
    Err(Refused { kind: "NoSuchCall", words: what.to_string() })
}

fn client_option(command: &Value) -> ClientOption {
    let mut options = ClientOption::default();
    options.set_access_url(text(command, "endpoint"));
    options.set_timeout(REQUEST_TIMEOUT);
    options.set_enable_tls(env::var("OFFICIAL_TLS").is_ok());
    // Of the whole call, for which servers want a longer time than for the shortest poll.
    options.set_long_polling_timeout(Duration::from_secs(command["await_s"].as_u64().unwrap_or(20) + 2));
    if let (Ok(key), Ok(secret)) = (env::var("OFFICIAL_ACCESS_KEY"), env::var("OFFICIAL_ACCESS_SECRET")) {
        options.set_access_key(key);
        options.set_secret_key(secret);
    }
    options
}

fn token(message: &MessageView) -> String {
    format!("{}/{}", message.message_id(), message.delivery_attempt())
}

fn described(message: &MessageView) -> Value {
    let mut keys = message.keys().to_vec();
    keys.sort();
    json!({
        "token": token(message), "message_id": message.message_id(), "topic": message.topic(),
        "body": String::from_utf8_lossy(message.body()), "tag": message.tag(), "keys": keys,
        "properties": message.properties(), "attempt": message.delivery_attempt(),
        "message_group": message.message_group(), "priority": null, "lite_topic": null, "handle": "", "corrupted": false,
    })
}

impl Program {
    async fn carry_out(&self, command: &Value) -> Said {
        match text(command, "do") {
            "open" => self.open(command).await,
            "send" => self.send(command).await,
            "end" => self.end(command).await,
            "receive" => self.receive(command).await,
            "ack" => {
                let message = self.received.lock().await[text(command, "token")].clone();
                self.consumer(command).await.client.ack(&*message).await?;
                Ok(json!({}))
            }
            "close" => self.close(command).await,
            other => no_such_call(other),
        }
    }

    async fn open(&self, command: &Value) -> Said {
        if !text(command, "namespace").is_empty() {
            return no_such_call("namespace");
        }
        let topics: Vec<String> = command["topics"].as_object().unwrap().keys().cloned().collect();
        let name = text(command, "client").to_string();
        match text(command, "kind") {
            "producer" => {
                let mut producer = producer(command, topics)?;
                producer.start().await?;
                self.producers.lock().await.insert(name, Arc::new(producer));
            }
            "simple" => {
                let topic = topics[0].clone();
                let kind = if command["sql"].as_bool() == Some(true) { FilterType::Sql } else { FilterType::Tag };
                let filter = FilterExpression::new(kind, command["topics"][&topic].as_str().unwrap());
                let mut options = SimpleConsumerOption::default();
                options.set_topics(topics);
                options.set_consumer_group(text(command, "group"));
                let mut client = SimpleConsumer::new(options, client_option(command))?;
                client.start().await?;
                self.consumers.lock().await.insert(name, Arc::new(Consumer { client, topic, filter }));
            }
            other => return no_such_call(other),
        }
        Ok(json!({"client_id": ""})) // the client keeps it to itself
    }

    async fn send(&self, command: &Value) -> Said {
        for name in ["priority", "lite_topic"] {
            if !command[name].is_null() {
                return no_such_call(name);
            }
        }
        let producer = self.producers.lock().await[text(command, "client")].clone();
        let mut message = MessageBuilder::builder()
            .set_topic(text(command, "topic"))
            .set_body(text(command, "body").as_bytes().to_vec())
            .set_keys(command["keys"].as_array().unwrap().iter().map(|key| key.as_str().unwrap()).collect())
            .set_properties(properties(command));
        if let Some(tag) = command["tag"].as_str() {
            message = message.set_tag(tag);
        }
        if let Some(group) = command["message_group"].as_str() {
            message = message.set_message_group(group);
        }
        if let Some(at_s) = command["deliver_at_s"].as_i64() {
            message = message.set_delivery_timestamp(at_s);
        }
        if command["half"].as_bool() == Some(true) {
            let transaction = producer.send_transaction_message(message.enable_transaction().build()?).await?;
            return Ok(self.remember(transaction).await);
        }
        let receipt = producer.send(message.build()?).await?;
        Ok(json!({"message_id": receipt.message_id(), "offset": -1})) // of which the receipt has no offset
    }

    async fn remember(&self, transaction: impl Transaction + Send + 'static) -> Value {
        let id = transaction.message_id().to_string();
        let said = json!({"message_id": id, "offset": -1, "transaction_id": transaction.transaction_id()});
        let (decide, decision) = oneshot::channel::<(bool, oneshot::Sender<_>)>();
        self.undecided.lock().await.insert(id, decide);
        tokio::spawn(async move {
            if let Ok((is_commit, done)) = decision.await {
                let _ = done.send(if is_commit { transaction.commit().await } else { transaction.rollback().await });
            }
        });
        said
    }

    async fn end(&self, command: &Value) -> Said {
        let decide = self.undecided.lock().await.remove(text(command, "message_id")).unwrap();
        let (done, is_done) = oneshot::channel();
        let _ = decide.send((text(command, "resolution") == "COMMIT", done));
        is_done.await.unwrap()?;
        Ok(json!({}))
    }

    async fn receive(&self, command: &Value) -> Said {
        let consumer = self.consumer(command).await;
        let held = Duration::from_secs(command["invisible_s"].as_u64().unwrap());
        let count = command["count"].as_i64().unwrap() as i32;
        let messages = consumer.client.receive_with(&consumer.topic, &consumer.filter, count, held).await?;
        let said: Vec<Value> = messages.iter().map(described).collect();
        let mut received = self.received.lock().await;
        received.extend(messages.into_iter().map(|message| (token(&message), Arc::new(message))));
        Ok(json!({"messages": said}))
    }

    async fn consumer(&self, command: &Value) -> Arc<Consumer> {
        self.consumers.lock().await[text(command, "client")].clone()
    }

    async fn close(&self, command: &Value) -> Said {
        let name = text(command, "client");
        if let Some(producer) = self.producers.lock().await.remove(name).and_then(Arc::into_inner) {
            producer.shutdown().await?;
        }
        if let Some(consumer) = self.consumers.lock().await.remove(name).and_then(Arc::into_inner) {
            consumer.client.shutdown().await?;
        }
        Ok(json!({}))
    }
}

fn producer(command: &Value, topics: Vec<String>) -> Result<Producer, ClientError> {
    let mut options = ProducerOption::default();
    options.set_topics(topics);
    let Some(decides) = command["decides"].as_str().map(str::to_string) else {
        return Producer::new(options, client_option(command));
    };
    let name = text(command, "client").to_string();
    let check = move |_: String, half: MessageView| {
        println!("{}", json!({"heard": name, "message": described(&half)}));
        match decides.as_str() {
            "COMMIT" => TransactionResolution::COMMIT,
            "ROLLBACK" => TransactionResolution::ROLLBACK,
            _ => TransactionResolution::UNKNOWN,
        }
    };
    Producer::new_transaction_producer(options, client_option(command), Box::new(check))
}

fn properties(command: &Value) -> HashMap<String, String> {
    let given = command["properties"].as_object().unwrap();
    given.iter().map(|(name, value)| (name.clone(), value.as_str().unwrap().to_string())).collect()
}

async fn answer(program: Arc<Program>, command: Value) {
    let mut said = match program.carry_out(&command).await {
        Ok(said) => said,
        Err(refused) => json!({"refused": refused.kind, "code": null, "words": refused.words}),
    };
    said["answer"] = command["number"].clone();
    println!("{said}");
}

#[tokio::main]
async fn main() {
    let program = Arc::new(Program::default());
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        tokio::spawn(answer(program.clone(), serde_json::from_str(&line).unwrap()));
    }
}

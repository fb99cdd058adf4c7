//! Starts the official Rust client once and says how that ended, as one line of JSON on stdout.
//!
//! Arguments: endpoint, kind (simple or producer: this client has no others), group, topic, filter type (tag or sql),
//! and filter. The client's log goes to stderr. OFFICIAL_ACCESS_KEY and OFFICIAL_ACCESS_SECRET sign.

use std::env;
use std::time::{Duration, Instant};

use rocketmq::conf::{ClientOption, ProducerOption, SimpleConsumerOption};
use rocketmq::model::common::{FilterExpression, FilterType};
use rocketmq::model::message::MessageBuilder;
use rocketmq::{Producer, SimpleConsumer};

fn say(outcome: &str, since: Instant, words: String) {
    let elapsed_ms = since.elapsed().as_millis() as u64;
    println!("{}", serde_json::json!({"outcome": outcome, "elapsed_ms": elapsed_ms, "words": words}));
}

fn said<T, E: std::fmt::Debug>(outcome: &str, since: Instant, result: Result<T, E>) -> bool {
    match &result {
        Ok(_) => say(outcome, since, String::new()),
        Err(error) => say("refused", since, format!("{error:?}")),
    }
    result.is_ok()
}

#[tokio::main]
async fn main() {
    let given: Vec<String> = env::args().skip(1).collect();
    let (kind, group, topic) = (&given[1], &given[2], &given[3]);
    let mut options = ClientOption::default();
    options.set_access_url(given[0].clone());
    options.set_enable_tls(false);
    options.set_long_polling_timeout(Duration::from_secs(20));
    if let (Ok(key), Ok(secret)) = (env::var("OFFICIAL_ACCESS_KEY"), env::var("OFFICIAL_ACCESS_SECRET")) {
        options.set_access_key(key);
        options.set_secret_key(secret);
    }
    let since = Instant::now();
    if kind == "producer" {
        let mut producing = ProducerOption::default();
        producing.set_topics(vec![topic.clone()]);
        let mut producer = Producer::new(producing, options).unwrap();
        if said("started", since, producer.start().await) {
            let message = MessageBuilder::builder().set_topic(topic).set_body(b"body".to_vec()).build().unwrap();
            said("served", Instant::now(), producer.send(message).await);
        }
    } else {
        let mut consuming = SimpleConsumerOption::default();
        consuming.set_topics(vec![topic.clone()]);
        consuming.set_consumer_group(group.clone());
        let mut consumer = SimpleConsumer::new(consuming, options).unwrap();
        if said("started", since, consumer.start().await) {
            let filter_type = if given[4] == "sql" { FilterType::Sql } else { FilterType::Tag };
            let filter = FilterExpression::new(filter_type, given[5].as_str());
            said("served", Instant::now(), consumer.receive(topic, &filter).await);
        }
    }
}

// The official Go client at the end of a pipe.
//
// One JSON command per line on stdin, one JSON answer per line on stdout; `clients/official_client.py` speaks the same.
// What a push consumer's listener hears comes unasked. Durations are whole seconds. The client's log is below HOME.
// With arguments it works by itself (working.go).
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sort"
	"sync"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

type command struct {
	Number       int               `json:"number"`
	Do           string            `json:"do"`
	Client       string            `json:"client"`
	Endpoint     string            `json:"endpoint"`
	Namespace    string            `json:"namespace"`
	Kind         string            `json:"kind"`
	Group        string            `json:"group"`
	Topics       map[string]string `json:"topics"`
	SQL          bool              `json:"sql"`
	AwaitS       int               `json:"await_s"`
	Decides      *string           `json:"decides"`
	Fail         int               `json:"fail"`
	Poison       string            `json:"poison"`
	How          string            `json:"how"`
	Waits        bool              `json:"waits"`
	SuspendS     int               `json:"suspend_s"`
	Topic        string            `json:"topic"`
	Body         string            `json:"body"`
	Tag          *string           `json:"tag"`
	Keys         []string          `json:"keys"`
	Properties   map[string]string `json:"properties"`
	DeliverAtS   *int64            `json:"deliver_at_s"`
	MessageGroup *string           `json:"message_group"`
	Priority     *int32            `json:"priority"`
	LiteTopic    *string           `json:"lite_topic"`
	LiteTopics   []string          `json:"lite_topics"`
	Half         bool              `json:"half"`
	MessageID    string            `json:"message_id"`
	Resolution   string            `json:"resolution"`
	Handle       string            `json:"handle"`
	Token        string            `json:"token"`
	Count        int32             `json:"count"`
	InvisibleS   int               `json:"invisible_s"`
}

type said map[string]any

// The client has no such call; the text names it.
type noSuchCall string

func (call noSuchCall) Error() string { return string(call) }

type client interface {
	Start() error
	GracefulStop() error
}

var (
	stdout       sync.Mutex
	clients      sync.Map // of client, by name
	releases     sync.Map // of func(), by client
	received     sync.Map // of *rmq.MessageView, by token
	transactions sync.Map // of rmq.Transaction, by message id
	resolutions  = map[string]rmq.TransactionResolution{"UNKNOWN": rmq.UNKNOWN, "COMMIT": rmq.COMMIT, "ROLLBACK": rmq.ROLLBACK}
)

func say(event said) {
	line, _ := json.Marshal(event)
	stdout.Lock()
	defer stdout.Unlock()
	os.Stdout.Write(append(line, '\n'))
}

func get[T any](from *sync.Map, name string) T {
	found, _ := from.Load(name)
	return found.(T)
}

func filters(c command) map[string]*rmq.FilterExpression {
	made := map[string]*rmq.FilterExpression{}
	for topic, expression := range c.Topics {
		made[topic] = rmq.NewFilterExpression(expression)
		if c.SQL {
			made[topic] = rmq.NewFilterExpressionWithType(expression, rmq.SQL92)
		}
	}
	return made
}

func names(topics map[string]string) []string {
	made := []string{}
	for topic := range topics {
		made = append(made, topic)
	}
	return made
}

// Fails the first `fail` attempts of a message (there is no way but a result); may wait to be released. With `suspend_s`
// it suspends a message so many times, whose attempt stays the same.
func listener(c command) *rmq.FuncMessageListener {
	released := make(chan struct{})
	release := sync.OnceFunc(func() { close(released) })
	if !c.Waits {
		release()
	}
	releases.Store(c.Client, release)
	calls, mutex := map[string]int32{}, sync.Mutex{} // a client that retries in place may not count them
	return &rmq.FuncMessageListener{Consume: func(message *rmq.MessageView) rmq.ConsumerResult {
		mutex.Lock()
		calls[message.GetMessageId()]++
		called := calls[message.GetMessageId()]
		mutex.Unlock()
		attempt := max(called, message.GetDeliveryAttempt())
		tries := attempt
		if c.SuspendS > 0 {
			attempt, tries = message.GetDeliveryAttempt(), called
		}
		say(said{"heard": c.Client, "message": described(message, attempt)})
		<-released
		isGood := c.Poison != "" && string(message.GetBody()) != c.Poison
		if isGood || int(tries) > c.Fail {
			return rmq.SUCCESS
		}
		if c.SuspendS > 0 {
			return rmq.NewConsumerResultSuspend(time.Duration(c.SuspendS) * time.Second)
		}
		if c.How == "raise" {
			panic("the listener panics on purpose")
		}
		return rmq.FAILURE
	}}
}

func open(c command) (client, error) {
	config := &rmq.Config{
		Endpoint: c.Endpoint, NameSpace: c.Namespace, ConsumerGroup: c.Group,
		Credentials: &credentials.SessionCredentials{
			AccessKey: os.Getenv("OFFICIAL_ACCESS_KEY"), AccessSecret: os.Getenv("OFFICIAL_ACCESS_SECRET"),
		},
	}
	switch c.Kind {
	case "push":
		return rmq.NewPushConsumer(config, rmq.WithPushAwaitDuration(5*time.Second),
			rmq.WithPushSubscriptionExpressions(filters(c)), rmq.WithPushMessageListener(listener(c)))
	case "lite":
		return rmq.NewLitePushConsumer(config, rmq.NewLitePushConsumerConfig(names(c.Topics)[0], 30*time.Second),
			rmq.WithPushAwaitDuration(5*time.Second), rmq.WithPushMessageListener(listener(c)))
	case "lite_simple":
		return nil, noSuchCall(c.Kind)
	case "simple":
		return rmq.NewSimpleConsumer(config, rmq.WithSimpleAwaitDuration(time.Duration(c.AwaitS)*time.Second),
			rmq.WithSimpleSubscriptionExpressions(filters(c)))
	default:
		options := []rmq.ProducerOption{rmq.WithTopics(names(c.Topics)...)}
		if c.Decides != nil {
			options = append(options, rmq.WithTransactionChecker(&rmq.TransactionChecker{
				Check: func(half *rmq.MessageView) rmq.TransactionResolution {
					say(said{"heard": c.Client, "message": described(half, half.GetDeliveryAttempt())})
					return resolutions[*c.Decides]
				},
			}))
		}
		return rmq.NewProducer(config, options...)
	}
}

func send(c command) (said, error) {
	message := &rmq.Message{Topic: c.Topic, Body: []byte(c.Body), Tag: c.Tag}
	message.SetKeys(c.Keys...)
	for name, value := range c.Properties {
		message.AddProperty(name, value)
	}
	if c.DeliverAtS != nil {
		message.SetDelayTimestamp(time.Unix(*c.DeliverAtS, 0))
	}
	if c.MessageGroup != nil {
		message.SetMessageGroup(*c.MessageGroup)
	}
	if c.Priority != nil {
		if err := message.SetPriority(*c.Priority); err != nil {
			return nil, err
		}
	}
	if c.LiteTopic != nil {
		message.SetLiteTopic(*c.LiteTopic)
	}
	producer := get[rmq.Producer](&clients, c.Client)
	var receipts []*rmq.SendReceipt
	var err error
	if c.Half {
		transaction := producer.BeginTransaction()
		if receipts, err = producer.SendWithTransaction(context.Background(), message, transaction); err == nil {
			transactions.Store(receipts[0].MessageID, transaction)
		}
	} else {
		receipts, err = producer.Send(context.Background(), message)
	}
	if err != nil {
		return nil, err
	}
	return said{
		"message_id": receipts[0].MessageID, "offset": receipts[0].Offset,
		"recall_handle": receipts[0].RecallHandle, "transaction_id": receipts[0].TransactionId,
	}, nil
}

func receive(c command) (said, error) {
	consumer := get[rmq.SimpleConsumer](&clients, c.Client)
	views, err := consumer.Receive(context.Background(), c.Count, time.Duration(c.InvisibleS)*time.Second)
	if status, ok := rmq.AsErrRpcStatus(err); ok && status.GetCode() == messageNotFound {
		err = nil // this client raises it for a poll that found nothing
	}
	messages := []said{}
	for _, view := range views {
		messages = append(messages, described(view, view.GetDeliveryAttempt()))
	}
	return said{"messages": messages}, err
}

// By default 3 s, which a busy machine may need for an ordinary answer.
const requestTimeout = 10 * time.Second

const messageNotFound = 40401

// The message a handle belongs to, carrying just that handle: the client itself remembers the newest alone.
func held(c command) *rmq.MessageView {
	message := get[*rmq.MessageView](&received, c.Token)
	message.ReceiptHandle = c.Handle
	return message
}

func described(message *rmq.MessageView, attempt int32) said {
	token := fmt.Sprintf("%s/%d/%s", message.GetMessageId(), attempt, message.GetReceiptHandle())
	received.Store(token, message)
	keys := append([]string{}, message.GetKeys()...)
	sort.Strings(keys)
	properties := message.GetProperties()
	if properties == nil {
		properties = map[string]string{}
	}
	return said{
		"token": token, "message_id": message.GetMessageId(), "topic": message.GetTopic(),
		"body": string(message.GetBody()), "tag": message.GetTag(), "keys": keys, "properties": properties,
		"attempt": attempt, "message_group": message.GetMessageGroup(),
		"priority":   nil, // the client shows none
		"lite_topic": message.GetLiteTopic(),
		"handle":     message.GetReceiptHandle(), "corrupted": false, // nor whether it is
	}
}

func carryOut(c command) (said, error) {
	switch c.Do {
	case "open":
		opened, err := open(c)
		if err == nil {
			if patient, ok := opened.(interface{ SetRequestTimeout(time.Duration) }); ok {
				patient.SetRequestTimeout(requestTimeout)
			}
			err = opened.Start()
			clients.Store(c.Client, opened)
		}
		return said{"client_id": ""}, err // the client keeps it to itself
	case "send":
		return send(c)
	case "end":
		transaction := get[rmq.Transaction](&transactions, c.MessageID)
		if c.Resolution == "COMMIT" {
			return said{}, transaction.Commit()
		}
		return said{}, transaction.RollBack()
	case "recall":
		id, err := get[rmq.Producer](&clients, c.Client).Recall(context.Background(), c.Topic, c.Handle)
		return said{"message_id": id}, err
	case "receive":
		return receive(c)
	case "ack":
		return said{}, get[rmq.SimpleConsumer](&clients, c.Client).Ack(context.Background(), held(c))
	case "change_invisible":
		message := held(c)
		err := get[rmq.SimpleConsumer](&clients, c.Client).ChangeInvisibleDuration(
			message, time.Duration(c.InvisibleS)*time.Second)
		return said{"handle": message.ReceiptHandle}, err
	case "subscribe_lite":
		for _, name := range c.LiteTopics {
			if err := get[rmq.LitePushConsumer](&clients, c.Client).SubscribeLite(name); err != nil {
				return nil, err
			}
		}
		return said{}, nil
	case "unsubscribe_lite":
		return said{}, get[rmq.LitePushConsumer](&clients, c.Client).UnSubscribeLite(*c.LiteTopic)
	case "lite_topics":
		return said{"lite_topics": nil}, nil // its log alone says so
	case "release":
		get[func()](&releases, c.Client)()
		return said{}, nil
	default: // close
		return said{}, get[client](&clients, c.Client).GracefulStop()
	}
}

func answer(c command) {
	said, err := carryOut(c)
	if err != nil {
		said = refused(err)
	}
	said["answer"] = c.Number
	say(said)
}

func refused(err error) said {
	answer := said{"refused": fmt.Sprintf("%T", err), "code": nil, "words": err.Error()}
	var missing noSuchCall
	if errors.As(err, &missing) {
		answer["refused"] = "NoSuchCall"
	}
	if status, ok := rmq.AsErrRpcStatus(err); ok {
		answer["code"] = status.GetCode()
	}
	return answer
}

func main() {
	os.Setenv("rocketmq.client.logRoot", os.Getenv("HOME"))
	rmq.ResetLogger()
	_, rmq.EnableSsl = os.LookupEnv("OFFICIAL_TLS")
	if len(os.Args) > 1 {
		work(os.Args[1:])
	}
	lines := bufio.NewReader(os.Stdin)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var c command
		if err := json.Unmarshal(line, &c); err != nil {
			panic(err)
		}
		go answer(c)
	}
}

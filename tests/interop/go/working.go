// The official Go client under torture: KIND SCENE ENDPOINT TOPIC GROUP NAME [LITE_TOPIC ...].
//
// It sends and consumes without end, until it is killed: by a simple consumer, or where the kind ends in `push` or
// `lite` by a push consumer, of the whole topic or of lite topics. What it says of each call, before and after it, is
// what `proof/torture/client_program.py` says; so are its numbers. A push consumer shows neither receives nor acks, so
// each call of the listener is told as a receive, with another one that nobody has seen.
package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"math/rand"
	"sort"
	"strings"
	"sync/atomic"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
	"golang.org/x/sys/unix"
)

const (
	holdOfWork     = 2 * time.Second
	waitOfWork     = 2 * time.Second
	timeoutOfWork  = 5 * time.Second
	pauseOfWork    = 20 * time.Millisecond
	receiveMax     = 8
	messageGroups  = 2
	dueWithinS     = 3
	liteTopics     = 3
	workOfListener = 5 * time.Millisecond
	commitsOfWork  = 0.7
	nobodyConfirms = "nobody confirms it"
)

var workNumbers atomic.Int64

type worker struct {
	scene, topic, name string
	chance             *rand.Rand
	producer           rmq.Producer
	consumer           rmq.SimpleConsumer // nil beside a push consumer
}

// Of the clock that Python calls monotonic.
func monotonicMs() float64 {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		panic(err)
	}
	return float64(now.Nano()) / 1e6
}

// No server may be there yet.
func untilThere[C client](make func() (C, error)) C {
	for {
		made, err := make()
		if err == nil {
			if patient, ok := any(made).(interface{ SetRequestTimeout(time.Duration) }); ok {
				patient.SetRequestTimeout(timeoutOfWork)
			}
			if err = made.Start(); err == nil {
				return made
			}
		}
		time.Sleep(pauseOfWork)
	}
}

func work(words []string) {
	kind, scene, endpoint, topic, group, name := words[0], words[1], words[2], words[3], words[4], words[5]
	config := &rmq.Config{Endpoint: endpoint, ConsumerGroup: group, Credentials: &credentials.SessionCredentials{}}
	options := []rmq.ProducerOption{rmq.WithTopics(topic)}
	if scene == "transactions" {
		options = append(options, rmq.WithTransactionChecker(&rmq.TransactionChecker{Check: decide}))
	}
	w := &worker{scene: scene, topic: topic, name: name, chance: rand.New(rand.NewSource(int64(crc32.ChecksumIEEE([]byte(name)))))}
	w.producer = untilThere(func() (rmq.Producer, error) { return rmq.NewProducer(config, options...) })
	all := map[string]*rmq.FilterExpression{topic: rmq.SUB_ALL}
	listen := rmq.WithPushMessageListener(&rmq.FuncMessageListener{Consume: w.listen})
	switch {
	case strings.HasSuffix(kind, "push"):
		untilThere(func() (rmq.PushConsumer, error) {
			return rmq.NewPushConsumer(config, rmq.WithPushAwaitDuration(waitOfWork), rmq.WithPushSubscriptionExpressions(all), listen)
		})
	case strings.HasSuffix(kind, "lite"):
		w.subscribe(untilThere(func() (rmq.LitePushConsumer, error) {
			lite := rmq.NewLitePushConsumerConfig(topic, 30*time.Second)
			return rmq.NewLitePushConsumer(config, lite, rmq.WithPushAwaitDuration(waitOfWork), listen)
		}), words[6:])
	default:
		w.consumer = untilThere(func() (rmq.SimpleConsumer, error) {
			return rmq.NewSimpleConsumer(config, rmq.WithSimpleAwaitDuration(waitOfWork), rmq.WithSimpleSubscriptionExpressions(all))
		})
	}
	for number := 1; ; number++ {
		for part := range 4 {
			w.send(fmt.Sprintf("%s %d %d", name, number, part))
		}
		if w.consumer == nil {
			time.Sleep(4 * pauseOfWork)
		} else {
			w.receive()
		}
	}
}

func (w *worker) subscribe(lite rmq.LitePushConsumer, names []string) {
	for _, name := range names {
		for isDone := false; !isDone; {
			told := said{"names": []string{name}, "client": w.name, "adds": true}
			call("LiteSync", told, func(map[string]any) error {
				err := lite.SubscribeLite(name)
				isDone = err == nil
				return err
			})
		}
	}
}

func (w *worker) listen(message *rmq.MessageView) rmq.ConsumerResult {
	unconfirmed("Receive", w.received())
	call("Receive", w.received(), func(end map[string]any) error {
		end["deliveries"] = []said{delivery(message)}
		return nil
	})
	time.Sleep(workOfListener)
	unconfirmed("Ack", said{"message_id": message.GetMessageId(), "handle": message.GetReceiptHandle()})
	return rmq.SUCCESS
}

// What a listener gets may be held by nobody any more.
func (w *worker) received() said {
	told := said{"held_ms": 0, "may_hide": false}
	if w.consumer != nil {
		told["held_ms"] = holdOfWork.Milliseconds()
	}
	if w.scene == "lite" {
		told["client"] = w.name
	}
	return told
}

func delivery(message *rmq.MessageView) said {
	return said{
		"message_id": message.GetMessageId(), "digest": digestOf(message.GetBody(), message.GetProperties()),
		"attempt": message.GetDeliveryAttempt(), "handle": message.GetReceiptHandle(),
	}
}

func (w *worker) send(body string) {
	message := &rmq.Message{Topic: w.topic, Body: []byte(body)}
	said := said{"digest": digestOf([]byte(body), nil)}
	switch w.scene {
	case "fifo":
		group := fmt.Sprintf("%s-group-%d", w.name, w.chance.Intn(messageGroups))
		message.SetMessageGroup(group)
		said["message_group"] = group
	case "lite":
		liteTopic := fmt.Sprintf("program-lite-%d", w.chance.Intn(liteTopics))
		message.SetLiteTopic(liteTopic)
		said["message_group"] = liteTopic
	case "delay":
		due := time.Unix(time.Now().Unix()+int64(w.chance.Intn(dueWithinS)), 0)
		message.SetDelayTimestamp(due)
		said["due_ms"] = float64(time.Until(due).Microseconds())/1e3 + monotonicMs()
	case "transactions":
		w.sendHalf(message, said)
		return
	}
	call("Send", said, func(end map[string]any) error {
		receipts, err := w.producer.Send(context.Background(), message)
		if err == nil {
			end["message_id"] = receipts[0].MessageID
		}
		return err
	})
}

func (w *worker) sendHalf(message *rmq.Message, told said) {
	transaction, messageID := w.producer.BeginTransaction(), ""
	call("HalfSend", told, func(end map[string]any) error {
		receipts, err := w.producer.SendWithTransaction(context.Background(), message, transaction)
		if err == nil {
			messageID = receipts[0].MessageID
			end["message_id"] = messageID
		}
		return err
	})
	if messageID == "" {
		return
	}
	commits := w.chance.Float64() < commitsOfWork
	call("EndTransaction", said{"message_id": messageID, "commits": commits}, func(map[string]any) error {
		if commits {
			return transaction.Commit()
		}
		return transaction.RollBack()
	})
}

func decide(half *rmq.MessageView) rmq.TransactionResolution {
	commits := crc32.ChecksumIEEE([]byte(half.GetMessageId()))%2 == 0
	unconfirmed("EndTransaction", said{"message_id": half.GetMessageId(), "commits": commits})
	if commits {
		return rmq.COMMIT
	}
	return rmq.ROLLBACK
}

func (w *worker) receive() {
	var held []*rmq.MessageView
	call("Receive", w.received(), func(end map[string]any) error {
		views, err := w.consumer.Receive(context.Background(), receiveMax, holdOfWork)
		if status, ok := rmq.AsErrRpcStatus(err); ok && status.GetCode() == messageNotFound {
			err = nil // this client raises it for a poll that found nothing
		}
		deliveries := []said{}
		for _, each := range views {
			deliveries = append(deliveries, delivery(each))
		}
		held, end["deliveries"] = views, deliveries
		return err
	})
	for _, each := range held {
		acked := said{"message_id": each.GetMessageId(), "handle": each.GetReceiptHandle()}
		call("Ack", acked, func(map[string]any) error { return w.consumer.Ack(context.Background(), each) })
	}
}

// As `tests.support.workload.digest`.
func digestOf(body []byte, properties map[string]string) string {
	parts := []string{}
	for name, value := range properties {
		parts = append(parts, quoted(name)+": "+quoted(value))
	}
	sort.Strings(parts)
	sum := sha256.Sum256(append(append([]byte{}, body...), []byte("{"+strings.Join(parts, ", ")+"}")...))
	return hex.EncodeToString(sum[:])[:16]
}

func quoted(text string) string {
	made, _ := json.Marshal(text)
	return string(made)
}

// `do` may add to what is said at its end.
func call(what string, told said, do func(map[string]any) error) {
	number, end := begin(what, told), map[string]any{}
	err := do(end)
	end["number"], end["completed_ms"] = number, monotonicMs()
	if err != nil {
		end["error"] = err.Error()
	}
	say(end)
	if err != nil {
		time.Sleep(pauseOfWork)
	}
}

// A call whose outcome nobody learns.
func unconfirmed(what string, told said) {
	number := begin(what, told)
	say(said{"number": number, "completed_ms": monotonicMs(), "error": nobodyConfirms})
}

func begin(what string, told said) int64 {
	number := workNumbers.Add(1)
	told["number"], told["call"], told["invoked_ms"] = number, what, monotonicMs()
	say(told)
	return number
}

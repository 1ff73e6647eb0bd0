// Sends a message that arrives on `push` two seconds later. Run: go run ./senddelayed
package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"

	"github.com/twmb/franz-go/pkg/kgo"
)

func brokers() string {
	if named := os.Getenv("TICKOVER_KAFKA__BOOTSTRAP_SERVERS"); named != "" {
		return named
	}
	return "localhost:9092"
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers()), kgo.ConsumeTopics("push"),
		kgo.FetchIsolationLevel(kgo.ReadCommitted())) // the default of this client sees aborted ones
	check(err)
	defer client.Close()

	var id [8]byte
	_, err = rand.Read(id[:])
	check(err)
	text := fmt.Sprintf("your table is ready (%x)", id)
	record := &kgo.Record{Topic: "reminders", Key: []byte("guest-7"), Value: []byte(text), Headers: []kgo.RecordHeader{
		{Key: "tickover-delay", Value: []byte("2s")},
		{Key: "tickover-target", Value: []byte("push")},
	}}
	check(client.ProduceSync(context.Background(), record).FirstErr())
	fmt.Println("sent to reminders, for push in 2 s")

	for {
		fetches := client.PollFetches(context.Background())
		check(fetches.Err())
		for _, message := range fetches.Records() {
			if string(message.Value) == text {
				fmt.Println("arrived on " + message.Topic)
				return
			}
		}
	}
}

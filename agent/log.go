package agent

import (
	"context"
	"log/slog"

	"github.com/evictd/evictd/agent/systemd"
)

// startLog starts the logger. flush writes the lines that wait, and stops it.
func startLog(o Options) (log *asyncLog, flush func()) {
	sink := systemd.NewLog(o.Stderr, systemd.Format{
		JSON: o.LogFormat == "json", Level: o.LogLevel, Journal: systemd.ToJournal(),
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		sink.Run(ctx) // its error could only be logged to the sink itself
	}()
	return &asyncLog{Logger: slog.New(sink.Handler()), dropped: sink.Dropped}, func() {
		cancel()
		<-done
	}
}

// asyncLog is a logger that never blocks, and counts the lines that it dropped.
type asyncLog struct {
	*slog.Logger
	dropped func() uint64
}

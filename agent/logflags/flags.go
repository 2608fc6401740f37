// Package logflags has the flags --log.level and --log.format of the programs that log to a stream alone: evictd-kube
// and evictd-controller. That of evictd, which must not wait for its log, is in agent/systemd.
package logflags

import (
	"flag"
	"fmt"
	"io"
	"log/slog"
)

// Flags are the values of the flags.
type Flags struct {
	level  slog.Level
	format string
}

// Register adds the flags to a FlagSet. They are valid after it was parsed.
func Register(flags *flag.FlagSet) *Flags {
	f := &Flags{}
	flags.TextVar(&f.level, "log.level", slog.LevelInfo, "log messages with at least `LEVEL`: debug, info, warn or error")
	flags.StringVar(&f.format, "log.format", "text", "log in `FORMAT`: text or json")
	return f
}

// Check returns an error if a flag has a value that does not exist.
func (f *Flags) Check() error {
	if f.format != "text" && f.format != "json" {
		return fmt.Errorf("--log.format is text or json, not %q", f.format)
	}
	return nil
}

// Logger returns a logger that writes to w.
func (f *Flags) Logger(w io.Writer) *slog.Logger {
	options := &slog.HandlerOptions{Level: f.level}
	if f.format == "json" {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}

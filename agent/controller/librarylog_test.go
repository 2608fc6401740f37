package controller

import (
	"context"
	"log/slog"
	"strings"
	"testing"
)

func TestLibraryLog(t *testing.T) {
	for _, tt := range []struct {
		level   slog.Level // of the log
		stopped bool
		want    string
	}{
		{slog.LevelInfo, false, "error warning"},
		{slog.LevelInfo, true, ""},
		{slog.LevelDebug, false, "error warning information"},
		{slog.LevelDebug, true, "error warning information"},
	} {
		ctx, stop := context.WithCancel(t.Context())
		if tt.stopped {
			stop()
		}
		var out strings.Builder
		log := slog.New(libraryHandler{slog.NewTextHandler(&out, &slog.HandlerOptions{Level: tt.level}), ctx}).With("a", 1).WithGroup("g")
		log.Error("error")
		log.Warn("warning")
		log.Info("information")
		stop()
		var got []string
		for line := range strings.Lines(out.String()) {
			_, message, _ := strings.Cut(line, "msg=")
			message, _, _ = strings.Cut(message, " ")
			got = append(got, message)
		}
		if got := strings.Join(got, " "); got != tt.want {
			t.Errorf("level %v, stopped: %t: logged %q; want %q", tt.level, tt.stopped, got, tt.want)
		}
	}
}

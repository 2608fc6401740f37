package pods

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
)

// A runtime that has never answered leaves nothing known, and no time since when.
func TestLogOfAFirstFailure(t *testing.T) {
	var b strings.Builder
	s := &source{err: errors.New("connection refused")}
	i := New(Options{Procfs: "/nowhere", Runtime: s, Log: slog.New(slog.NewTextHandler(&b, nil))})
	if err := i.list(t.Context(), i.runtime); err == nil {
		t.Fatal("list() = nil; want an error")
	}
	if got := b.String(); !strings.Contains(got, "none is known yet") || strings.Contains(got, "0001-01-01") {
		t.Errorf("log of a first failure:\n%s; want no time in it", got)
	}
}

package main

import (
	"errors"
	"strings"
	"testing"

	"github.com/evictd/evictd/tests/vm/machine"
)

// Only a panic before the boot's end is given a second chance, one, and it is told of.
func TestBootedTwice(t *testing.T) {
	panicked := &machine.Error{Kind: machine.ErrPanicked, Text: "Oops: int3"}
	booted := machine.Report{Release: "6.1.0"}
	type end struct {
		report machine.Report
		err    error
	}
	for _, tt := range []struct {
		name string
		ends []end // of the boots there may be
		want error
	}{
		{"done", []end{{booted, nil}}, nil},
		{"panics while it boots", []end{{machine.Report{}, panicked}, {booted, nil}}, nil},
		{"panics each time", []end{{machine.Report{}, panicked}, {machine.Report{}, panicked}}, machine.ErrPanicked},
		{"panics later", []end{{booted, panicked}}, machine.ErrPanicked},
		{"hangs while it boots", []end{{machine.Report{}, &machine.Error{Kind: machine.ErrHung}}}, machine.ErrHung},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var said strings.Builder
			b := &bed{out: newPrinter(&said)}
			boots := 0
			_, err := b.twice(variant{name: "m"}, func() (machine.Report, error) {
				boots++
				if boots > len(tt.ends) {
					t.Fatalf("boot %d; want %d", boots, len(tt.ends))
				}
				return tt.ends[boots-1].report, tt.ends[boots-1].err
			})
			if !errors.Is(err, tt.want) || boots != len(tt.ends) {
				t.Errorf("error %v after %d boots; want %v after %d", err, boots, tt.want, len(tt.ends))
			}
			if told := strings.Contains(said.String(), "Oops: int3"); told != (boots > 1) {
				t.Errorf("said %q; want the first panic where there was a second boot", said.String())
			}
		})
	}
}

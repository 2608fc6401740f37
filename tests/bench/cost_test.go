package main

import (
	"testing"
	"time"

	"github.com/evictd/evictd/tests/trace"
)

func TestTimerTime(t *testing.T) {
	const text = `          <idle>-0       [000] d.h1.  4201.000010: hrtimer_expire_entry: hrtimer=000000001 function=tick_nohz_handler now=4201000000000
          <idle>-0       [000] d.h1.  4201.000012: hrtimer_expire_exit: hrtimer=000000001
          <idle>-0       [001] d.s1.  4201.000020: hrtimer_expire_entry: hrtimer=000000002 function=bpf_timer_cb now=4201000000000
          <idle>-0       [000] d.h1.  4201.000022: hrtimer_expire_entry: hrtimer=000000001 function=tick_nohz_handler now=4201000000000
          <idle>-0       [001] d.s1.  4201.000027: hrtimer_expire_exit: hrtimer=000000002
          <idle>-0       [001] d.s1.  4201.000120: hrtimer_expire_entry: hrtimer=000000002 function=bpf_timer_cb now=4201000000000
          <idle>-0       [001] d.s1.  4201.000123: hrtimer_expire_exit: hrtimer=000000002
          <idle>-0       [001] d.s1.  4201.000220: hrtimer_expire_entry: hrtimer=000000002 function=bpf_timer_cb now=4201000000000
`
	events, err := trace.ParseEvents([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := timerTime(events), (runTime{10 * time.Microsecond, 2}); got != want {
		t.Errorf("timerTime(trace) = %+v; want %+v", got, want)
	}
}

package fence

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// DefaultTimings returns the timings of a plan that names none.
func DefaultTimings() Timings {
	d := func(d time.Duration) metav1.Duration { return metav1.Duration{Duration: d} }
	return Timings{
		Grace:          d(time.Minute),
		PowerDelay:     d(5 * time.Minute),
		KdumpMaxWait:   d(10 * time.Minute),
		ProofTimeout:   d(time.Minute),
		ProofInterval:  d(5 * time.Second),
		Settle:         d(time.Minute),
		ReleaseTimeout: d(10 * time.Minute),
		UntaintDelay:   d(5 * time.Second),
		ReturnTimeout:  d(30 * time.Minute),
		HealthyDelay:   d(time.Minute),
		TotalTimeout:   d(30 * time.Minute),
		Backoff:        d(30 * time.Second),
		Retries:        3,
	}
}

// DefaultPolicy returns the policy without configuration: dry run, half of the nodes, one fence at a time, two at the
// start and then one each 5 minutes.
func DefaultPolicy() Policy {
	return Policy{
		Percentage: 50, MaxConcurrent: 1, Rate: 5 * time.Minute, Burst: 2, Cooldown: 5 * time.Minute,
		AppliesTo: StatefulSets, Timings: DefaultTimings(),
	}
}

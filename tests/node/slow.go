package node

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// SlowFactorEnv is the environment variable with the factor by which this machine is slower than usual, a whole number
// of at least 1.
const SlowFactorEnv = "EVICTD_TEST_SLOW"

// emulatedFactor is the factor of an emulated machine. QEMU without KVM was measured to be 10 to 30 times slower; 10
// is enough, because the timeouts are long on a usual machine.
const emulatedFactor = 10

// ScaleTimeout scales a timeout to the speed of this machine. It must not be applied to durations that do not depend on
// the speed, such as a grace period.
//
// The factor is the value of EVICTD_TEST_SLOW, else 10 on a processor that QEMU emulates, else 1.
func ScaleTimeout(d time.Duration) time.Duration { return d * slowFactor() }

var slowFactor = sync.OnceValue(func() time.Duration {
	factor, err := readSlowFactor(os.Getenv(SlowFactorEnv), "/proc/cpuinfo")
	if err != nil {
		panic(err) // an invalid EVICTD_TEST_SLOW must not be ignored
	}
	return factor
})

// readSlowFactor parses the value of EVICTD_TEST_SLOW or, if that is empty, derives the factor from the processor in
// the file cpuinfo:
//
//	model name	: QEMU TCG CPU version 2.5+
func readSlowFactor(variable, cpuinfo string) (time.Duration, error) {
	if variable != "" {
		n, err := strconv.ParseUint(variable, 10, 16)
		if err != nil || n == 0 {
			return 0, fmt.Errorf("%s is %q; want a whole number of at least 1", SlowFactorEnv, variable)
		}
		return time.Duration(n), nil
	}
	b, err := os.ReadFile(cpuinfo)
	if err != nil {
		return 0, fmt.Errorf("detect an emulated processor: %w", err)
	}
	for line := range strings.Lines(string(b)) {
		key, value, _ := strings.Cut(line, ":")
		if strings.TrimSpace(key) == "model name" && strings.Contains(value, "QEMU TCG CPU") {
			return emulatedFactor, nil
		}
	}
	return 1, nil
}

package node

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// SlowVariable names the environment variable that tells how many times slower than usual this machine is: a whole
// number from 1 on.
const SlowVariable = "EVICTD_TEST_SLOW"

// emulated is how many times slower an emulated machine is taken to be. Behind QEMU without KVM, ten to thirty times
// were measured; what is waited for is bounded generously already.
const emulated = 10

// Slow stretches a time that something may take at most to what it may take on this machine. It is not for times
// that are measured out by the clock, such as a grace period.
//
// The factor is that of EVICTD_TEST_SLOW, else 10 on a processor that QEMU emulates, else 1.
func Slow(d time.Duration) time.Duration { return d * pace() }

var pace = sync.OnceValue(func() time.Duration {
	factor, err := slowness(os.Getenv(SlowVariable), "/proc/cpuinfo")
	if err != nil {
		panic(err) // who asked for a factor shall get it
	}
	return factor
})

// slowness reads the factor that was asked for or, where none was, what processor this is:
//
//	model name	: QEMU TCG CPU version 2.5+
func slowness(asked, cpuinfo string) (time.Duration, error) {
	if asked != "" {
		n, err := strconv.ParseUint(asked, 10, 16)
		if err != nil || n == 0 {
			return 0, fmt.Errorf("%s is %q; want a whole number from 1 on", SlowVariable, asked)
		}
		return time.Duration(n), nil
	}
	b, err := os.ReadFile(cpuinfo)
	if err != nil {
		return 0, fmt.Errorf("find out how slow this machine is: %w", err)
	}
	for line := range strings.Lines(string(b)) {
		key, value, _ := strings.Cut(line, ":")
		if strings.TrimSpace(key) == "model name" && strings.Contains(value, "QEMU TCG CPU") {
			return emulated, nil
		}
	}
	return 1, nil
}

package ipmi

import (
	"context"
	"fmt"
	"sync"
)

// locks has one lock per address, for the time in which a session uses it or waits for it.
var locks = struct {
	sync.Mutex
	byAddress map[string]*addressLock
}{byAddress: map[string]*addressLock{}}

type addressLock struct {
	users int           // sessions that have it or wait for it
	taken chan struct{} // of capacity 1
}

// lock waits until no other session of this process uses the address. The caller calls unlock once.
func lock(ctx context.Context, address string) (unlock func(), err error) {
	locks.Lock()
	l := locks.byAddress[address]
	if l == nil {
		l = &addressLock{taken: make(chan struct{}, 1)}
		locks.byAddress[address] = l
	}
	l.users++
	locks.Unlock()
	leave := func() {
		locks.Lock()
		defer locks.Unlock()
		if l.users--; l.users == 0 {
			delete(locks.byAddress, address)
		}
	}
	if err := ctx.Err(); err != nil { // select would choose at random
		leave()
		return nil, err
	}
	select {
	case l.taken <- struct{}{}:
		return func() { <-l.taken; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, fmt.Errorf("wait for another session with the BMC: %w", ctx.Err())
	}
}

package main

import (
	"context"
	"errors"

	"github.com/evictd/evictd/tests/vm/machine"
)

// shell boots one machine with the payload and connects its console to the terminal.
func (b *runner) shell(ctx context.Context) (err error) {
	done, err := b.prepare(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, done()) }()
	if b.payload, err = buildPayload(ctx, b.scratch+"/payload", b.selectedSuites()); err != nil {
		return err
	}
	v := plain(b.kernels[:1], b.driver)[0]
	c, err := b.config(ctx, v, nil)
	if err != nil {
		return err
	}
	c.Dir = b.scratch
	b.out.say("", "booting %s; the programs are in /payload; poweroff or ^A x ends it", v.kernel)
	return machine.Shell(ctx, c)
}

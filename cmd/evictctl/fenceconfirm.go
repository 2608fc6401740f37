package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// annotationConfirmOff is the annotation of a Node with a person's word that the machine is off.
	annotationConfirmOff = "evictd.io/confirm-off"
	// An annotation that evictd-controller has dealt with counts again after it was seen without: it looks at a node with
	// a fence at least every 10 s.
	withdrawTimeout  = time.Minute
	withdrawInterval = time.Second
)

func newFenceConfirmCommand() *cobra.Command {
	var uid string
	cmd := &cobra.Command{
		Use:   "confirm NODE",
		Short: "Confirm that the machine of a node is off, so that its pods and volumes are released",
		Long: `Confirm is a person's word that the machine of a node is off: evictd-controller then
releases the node's pods and volumes without a reading of its power device. If the
machine runs, its pods run twice, and its volumes are written by two machines. Look at
the machine, or switch it off at its plug, before you confirm.

Confirm shows the fence and asks for the name of the node. With --fence it does not ask:
the UID says that you have looked at this fence, and not at an earlier one.

It sets the annotation evictd.io/confirm-off of the Node. It runs kubectl, with your
credentials: the audit log of the API server has your name.

It exits with 1 if the node has no fence that can be confirmed, or is Ready.`,
		Example: `  evictctl fence confirm host1

  # Without a question
  evictctl fence confirm host1 --fence 7d3b2a52-61b7-4f0e-9d7c-2b7f3a0e8f11`,
		Args: cobra.ExactArgs(1),
	}
	k := addKubectlFlags(cmd)
	cmd.Flags().StringVar(&uid, "fence", "", "confirm the fence with this `UID` without a question; evictctl fence show prints it")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx, stdout := cmd.Context(), cmd.OutOrStdout()
		f, err := fenceOf(ctx, k, args[0])
		if err != nil {
			return err
		}
		n, err := confirmable(ctx, k, f)
		if err != nil {
			return err
		}
		if uid == "" {
			if err := fencePage(f, time.Now()).print(stdout); err != nil {
				return err
			}
			question := fmt.Sprintf("\nIf the machine of node %s runs, its pods will run twice and its volumes will be damaged.\n"+
				"Enter the name of the node if you have seen that its machine is off: ", f.Node)
			if err := ask(bufio.NewReader(cmd.InOrStdin()), stdout, question, f.Node); err != nil {
				return fmt.Errorf("not confirmed: %w; without a terminal, name the fence with --fence", err)
			}
		} else if uid != string(f.Metadata.UID) {
			return fmt.Errorf("node %s has the fence %s, not %s; look at it with evictctl fence show %[1]s", f.Node, f.Metadata.UID, uid)
		}
		if err := confirm(ctx, k, f, n); err != nil {
			return err
		}
		_, err = fmt.Fprintf(stdout, "confirmed that the machine of node %s is off; see evictctl fence show %[1]s\n", f.Node)
		return err
	}
	return cmd
}

// nodeObject is a Node. It has the fields that evictctl reads.
type nodeObject struct {
	Metadata metav1.ObjectMeta `json:"metadata"`
	Status   struct {
		Conditions []struct {
			Type   string                 `json:"type"`
			Status metav1.ConditionStatus `json:"status"`
		} `json:"conditions"`
	} `json:"status"`
}

// confirmable returns the Node of a fence whose machine can be confirmed to be off.
func confirmable(ctx context.Context, k *kubectl, f *nodeFence) (*nodeObject, error) {
	s := f.state()
	switch {
	case s.DryRun:
		return nil, fmt.Errorf("the fence of node %s is a dry run, which releases nothing; %s", f.Node, remedy(f))
	case !s.FinishedAt.IsZero():
		return nil, fmt.Errorf("the fence of node %s ended at %s: %s", f.Node, at(s.FinishedAt.Time), s.Result)
	case !s.Confirmable():
		return nil, fmt.Errorf("the fence of node %s is past the proof that the machine is off (%s)", f.Node, f.stage())
	}
	n := &nodeObject{}
	if err := k.get(ctx, n, "node", f.Node); err != nil {
		return nil, err
	}
	if string(n.Metadata.UID) != s.Target.UID {
		return nil, fmt.Errorf("the Node %s was replaced since its fence began: nothing is done about it any more", f.Node)
	}
	for _, c := range n.Status.Conditions {
		if c.Type == "Ready" && c.Status == metav1.ConditionTrue {
			return nil, fmt.Errorf("the node %s is Ready: its machine is not off", f.Node)
		}
	}
	return n, nil
}

// ask returns nil if the answer to a question is the one that is wanted.
func ask(in *bufio.Reader, out io.Writer, question, want string) error {
	fmt.Fprint(out, question)
	line, err := in.ReadString('\n')
	switch {
	case strings.TrimSpace(line) == want:
		return nil
	case err != nil && !errors.Is(err, io.EOF):
		return fmt.Errorf("read the answer: %w", err)
	}
	return fmt.Errorf("%q was not entered", want)
}

// confirm sets the annotation. One that counted already, before the proof was lost, is removed first.
func confirm(ctx context.Context, k *kubectl, f *nodeFence, n *nodeObject) error {
	uid := string(f.Metadata.UID)
	if f.State.ConfirmOff == uid {
		if _, err := k.call(ctx, "annotate", "node", f.Node, annotationConfirmOff+"-"); err != nil {
			return err
		}
		if err := awaitWithdrawn(ctx, k, f); err != nil {
			return err
		}
	} else if n.Metadata.Annotations[annotationConfirmOff] == uid {
		return nil // evictd-controller has not looked at it yet
	}
	_, err := k.call(ctx, "annotate", "node", f.Node, annotationConfirmOff+"="+uid, "--overwrite")
	return err
}

// awaitWithdrawn waits until evictd-controller has seen the Node without the annotation.
func awaitWithdrawn(ctx context.Context, k *kubectl, f *nodeFence) error {
	for deadline := time.Now().Add(withdrawTimeout); ; {
		next, err := fenceOf(ctx, k, f.Node)
		switch {
		case err != nil:
			return err
		case next.Metadata.UID != f.Metadata.UID:
			return fmt.Errorf("node %s has another fence now, %s; look at it with evictctl fence show %[1]s", f.Node, next.Metadata.UID)
		case next.State.ConfirmOff == "":
			return nil
		case time.Now().After(deadline):
			return fmt.Errorf("evictd-controller has not seen within %s that the annotation %s of node %s was removed, so that it "+
				"could count again; check that it runs, then repeat this command", withdrawTimeout, annotationConfirmOff, f.Node)
		}
		select {
		case <-time.After(withdrawInterval):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

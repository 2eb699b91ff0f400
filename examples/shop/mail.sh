#!/bin/sh
# mail.sh CUSTOMER: the value of the step before comes in the environment
echo "to $1: thank you, $FAIRLEAD_STEP_VALUE" >> mails.txt
